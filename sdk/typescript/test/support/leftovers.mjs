// Counts the timers, listeners and WebSockets that code has created and not released. Works in Node and in browsers.

/**
 * Replaces the functions that create timers and listeners, and the WebSocket class, with versions that count. Call it before the
 * code under test is loaded. Returns a function that lists everything that was not released, with the stack that created it. Stacks
 * that `ignore` matches are left out.
 */
export function countLeftovers({ listeners = true, ignore = /(?!)/ } = {}) {
  const live = new Map();
  const origin = (what) => `${what}\n${new Error().stack?.split("\n").slice(3, 7).join("\n") ?? ""}`;

  for (const [start, stop] of [["setTimeout", "clearTimeout"], ["setInterval", "clearInterval"]]) {
    const create = globalThis[start];
    const clear = globalThis[stop];
    globalThis[start] = (callback, delay, ...values) => {
      const timer = create(
        (...given) => {
          if (start === "setTimeout") live.delete(timer);
          callback(...given);
        },
        delay,
        ...values,
      );
      live.set(timer, origin(`${start}(${delay})`));
      return timer;
    };
    globalThis[stop] = (timer) => {
      live.delete(timer);
      clear(timer);
    };
  }

  if (listeners) {
    const { addEventListener, removeEventListener } = EventTarget.prototype;
    const added = new WeakMap();
    const keyOf = (type, options) => `${type} ${typeof options === "object" ? options?.capture === true : options === true}`;
    EventTarget.prototype.addEventListener = function add(type, listener, options) {
      addEventListener.call(this, type, listener, options);
      // A listener that is removed by its first event or by a signal is not a leftover.
      if (listener === null || (typeof options === "object" && (options?.once || options?.signal))) return;
      const ofTarget = added.get(this ?? globalThis) ?? new Map();
      added.set(this ?? globalThis, ofTarget);
      const name = keyOf(type, options);
      const ofName = ofTarget.get(name) ?? new Map();
      ofTarget.set(name, ofName);
      if (ofName.has(listener)) return;
      const entry = {};
      ofName.set(listener, entry);
      live.set(entry, origin(`addEventListener(${type})`));
    };
    EventTarget.prototype.removeEventListener = function remove(type, listener, options) {
      removeEventListener.call(this, type, listener, options);
      const ofName = added.get(this ?? globalThis)?.get(keyOf(type, options));
      live.delete(ofName?.get(listener));
      ofName?.delete(listener);
    };
  }

  const { WebSocket: Native } = globalThis;
  if (Native !== undefined) {
    globalThis.WebSocket = class extends Native {
      constructor(...values) {
        super(...values);
        live.set(this, origin("WebSocket"));
      }
    };
  }

  return () => {
    for (const item of live.keys()) {
      if (Native !== undefined && item instanceof Native && item.readyState === Native.CLOSED) live.delete(item);
    }
    return [...live.values()].filter((place) => !ignore.test(place));
  };
}
