/** A small typed event emitter. */
export class Emitter<Events extends object> {
  readonly #listeners = new Map<keyof Events, Set<(value: never) => void>>();

  /** Adds a listener. Returns a function that removes the listener. */
  on<K extends keyof Events>(name: K, listener: (value: Events[K]) => void): () => void {
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(listener));
    return () => this.off(name, listener);
  }

  off<K extends keyof Events>(name: K, listener: (value: Events[K]) => void): void {
    this.#listeners.get(name)?.delete(listener);
  }

  /** Calls the listeners. Returns whether there was one. */
  emit<K extends keyof Events>(name: K, value: Events[K]): boolean {
    const listeners = [...(this.#listeners.get(name) ?? [])];
    for (const listener of listeners) {
      try {
        (listener as (value: Events[K]) => void)(value);
      } catch (thrown) {
        // A listener that throws must not break the connection.
        console.error("prombus: a listener failed", thrown);
      }
    }
    return listeners.length > 0;
  }

  clear(): void {
    this.#listeners.clear();
  }
}
