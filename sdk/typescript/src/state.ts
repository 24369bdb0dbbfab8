/** The newest event of each key of a topic, kept up to date. */
import { Backoff } from "./backoff.js";
import { PrombusError } from "./errors.js";
import { SILENCE_MS, tail } from "./history.js";
import type { Http } from "./http.js";
import type { Millis, StoredEvent, UUID } from "./types.js";

const RETRY_MS: Millis = 500;
const MAX_RETRY_MS: Millis = 30_000;

/** One key that changed. */
export interface StateChange<T = unknown> {
  readonly key: string;
  /** The key's new event; undefined if the key was deleted. */
  readonly event: StoredEvent<T> | undefined;
  /** What the key had when the iterator's last change was made; undefined if the key is new. */
  readonly previous: StoredEvent<T> | undefined;
}

/** A position in a topic: that of an event. */
export interface StatePosition {
  readonly id: UUID;
  readonly seq: number;
}

interface StatePage<T> {
  position: StatePosition | null;
  events: StoredEvent<T>[];
  next: string | null;
}

/** An iterator over changes. Holds at most one change of each key. */
interface Watcher<T> {
  readonly pending: Map<string, StateChange<T>>;
  wake(): void;
}

/**
 * The newest event of each key that is not deleted. It follows the topic until it is closed; an event with the payload null
 * deletes its key. Iterating gives the changes after that moment.
 */
export class StateView<T = unknown> implements AsyncIterable<StateChange<T>> {
  /** Resolves when the view no longer follows its topic: it was closed, or `error` says why. Never rejects. */
  readonly closed: Promise<void>;
  readonly #http: Http;
  readonly #topic: string;
  readonly #stop = new AbortController();
  readonly #watchers = new Set<Watcher<T>>();
  #events = new Map<string, StoredEvent<T>>();
  #position: StatePosition | undefined;
  #error: PrombusError | undefined;
  #isClosed = false;
  #setClosed!: () => void;

  private constructor(http: Http, topic: string) {
    this.#http = http;
    this.#topic = topic;
    this.closed = new Promise((resolve) => (this.#setClosed = resolve));
  }

  /** Loads the state and begins to follow it. While the server cannot be reached it tries again. `signal` closes the view. */
  static async load<T = unknown>(
    http: Http,
    topic: string,
    options: { signal?: AbortSignal } = {},
  ): Promise<StateView<T>> {
    const view = new StateView<T>(http, topic);
    const { signal } = options;
    const stop = (): void => view.#stop.abort(signal?.reason);
    signal?.addEventListener("abort", stop);
    void view.closed.then(() => signal?.removeEventListener("abort", stop));
    if (signal?.aborted) stop();
    try {
      await view.#load();
    } catch (error) {
      view.#end();
      throw error;
    }
    void view.#follow();
    return view;
  }

  get(key: string): StoredEvent<T> | undefined {
    return this.#events.get(key);
  }

  has(key: string): boolean {
    return this.#events.has(key);
  }

  /** In seq order. */
  entries(): IterableIterator<[string, StoredEvent<T>]> {
    return this.#events.entries();
  }

  keys(): IterableIterator<string> {
    return this.#events.keys();
  }

  values(): IterableIterator<StoredEvent<T>> {
    return this.#events.values();
  }

  get size(): number {
    return this.#events.size;
  }

  /** The last event that the view contains; undefined while the topic has none. */
  get position(): StatePosition | undefined {
    return this.#position;
  }

  /** Why the view stopped following its topic, if it failed. */
  get error(): PrombusError | undefined {
    return this.#error;
  }

  /**
   * The changes from now on. If the reader is slower than they come, those of one key become one change. Ends when the view
   * is closed, and throws if it fails.
   */
  [Symbol.asyncIterator](): AsyncIterableIterator<StateChange<T>> {
    const pending = new Map<string, StateChange<T>>();
    let waiting: (() => void)[] = [];
    let isDone = false;
    const watcher: Watcher<T> = {
      pending,
      wake() {
        const woken = waiting;
        waiting = [];
        for (const resume of woken) resume();
      },
    };
    this.#watchers.add(watcher);
    const next = async (): Promise<IteratorResult<StateChange<T>>> => {
      for (;;) {
        for (const [key, value] of isDone ? [] : pending) {
          pending.delete(key);
          return { done: false, value };
        }
        if (isDone || this.#isClosed) {
          const error = isDone ? undefined : this.#error;
          isDone = true;
          if (error !== undefined) throw error;
          return { done: true, value: undefined };
        }
        await new Promise<void>((resume) => waiting.push(resume));
      }
    };
    return {
      next,
      return: () => {
        isDone = true;
        this.#watchers.delete(watcher);
        watcher.wake();
        return next();
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  /** Stops following the topic and ends the iterators. What was loaded can still be read. */
  close(): void {
    this.#stop.abort();
    for (const { pending } of this.#watchers) pending.clear();
    this.#end();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  async #load(): Promise<void> {
    const { signal } = this.#stop;
    const path = `/state/${encodeURIComponent(this.#topic)}`;
    const backoff = new Backoff(RETRY_MS, MAX_RETRY_MS);
    const events = new Map<string, StoredEvent<T>>();
    let page: StatePage<T> | undefined;
    while (page === undefined || page.next !== null) {
      try {
        page = await this.#http.json<StatePage<T>>("GET", path, {
          query: { next: page?.next ?? undefined },
          signal,
          idleMs: SILENCE_MS,
        });
      } catch (error) {
        await this.#http.retryAfter(error, backoff, signal);
        continue;
      }
      backoff.reset();
      for (const event of page.events) events.set(event.key as string, event);
    }
    const old = this.#events;
    this.#events = events;
    // All pages have the position of the first.
    this.#position = page.position ?? undefined;
    for (const [key, previous] of old) if (!events.has(key)) this.#changed(key, undefined, previous);
    for (const [key, event] of events) {
      const previous = old.get(key);
      if (previous?.id !== event.id) this.#changed(key, event, previous);
    }
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stop;
    const backoff = new Backoff(RETRY_MS, MAX_RETRY_MS);
    try {
      for (;;) {
        const from = this.#position === undefined ? "earliest" : { afterId: this.#position.id };
        try {
          for await (const event of tail<T>(this.#http, this.#topic, { from, signal, resumeAfterEvents: true })) {
            this.#apply(event);
            backoff.reset();
          }
          return;
        } catch (error) {
          // The server was restored to an older state, or the topic was deleted.
          if (!(error instanceof PrombusError) || error.code !== "unknown_id") throw error;
        }
        await this.#http.sleep(backoff.next(), signal);
        await this.#load();
      }
    } catch (error) {
      if (!signal.aborted && !this.#http.closed.aborted) this.#error = error as PrombusError;
    } finally {
      this.#end();
    }
  }

  #apply(event: StoredEvent<T>): void {
    const { id, seq, key } = event;
    this.#position = { id, seq };
    if (key === undefined) return;
    const previous = this.#events.get(key);
    // Set again at the end: the keys stay in seq order.
    this.#events.delete(key);
    const isDeleted = event.payload === null;
    if (!isDeleted) this.#events.set(key, event);
    this.#changed(key, isDeleted ? undefined : event, previous);
  }

  #changed(key: string, event: StoredEvent<T> | undefined, previous: StoredEvent<T> | undefined): void {
    for (const { pending, wake } of this.#watchers) {
      const change = pending.get(key);
      const before = change === undefined ? previous : change.previous;
      // Made and deleted since the reader looked: nothing to tell.
      if (event === undefined && before === undefined) pending.delete(key);
      else pending.set(key, { key, event, previous: before });
      wake();
    }
  }

  #end(): void {
    this.#isClosed = true;
    for (const { wake } of this.#watchers) wake();
    this.#watchers.clear();
    this.#setClosed();
  }
}
