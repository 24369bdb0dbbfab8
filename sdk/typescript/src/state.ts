/// <reference lib="esnext.disposable" preserve="true" />
/** A view of a topic's state: the newest event of each key, kept up to date. */
import { ClosedError, type PrombusError } from "./errors.js";
import { retryBackoff, tail } from "./history.js";
import { type Http, onAbort } from "./http.js";
import type { StoredEvent, UUID } from "./types.js";

/** One key that changed. */
export interface StateChange<T = unknown> {
  readonly key: string;
  /** The key's new event; undefined if the key was deleted. */
  readonly event: StoredEvent<T> | undefined;
  /** The key's event before this change, as this iterator saw it; undefined if the key is new. */
  readonly previous: StoredEvent<T> | undefined;
}

/** The position of an event in its topic. */
export interface StatePosition {
  readonly id: UUID;
  readonly seq: number;
}

interface StatePage<T> {
  position: StatePosition | null;
  events: StoredEvent<T>[];
  next: string | null;
}

/** The changes that an iterator has not returned yet: at most one per key. */
type Pending<T> = Map<string, StateChange<T>>;

/**
 * The newest event of each key that is not deleted. The view follows the topic until the view is closed; an event with the payload
 * null deletes its key. Events for one group (with an `addressee`) do not change the state. Iterating returns the changes from that
 * point on.
 */
export class StateView<T = unknown> implements AsyncIterable<StateChange<T>> {
  readonly #http: Http;
  readonly #topic: string;
  /** Aborts when the view is closed or has failed. */
  readonly #stop = new AbortController();
  /** One entry for each iterator that has not ended. */
  readonly #iterators = new Set<Pending<T>>();
  /** Callbacks that wake the waiting calls of `next`. */
  readonly #waiting: (() => void)[] = [];
  #events = new Map<string, StoredEvent<T>>();
  #position: StatePosition | undefined;
  #error: PrombusError | undefined;
  #closed = Promise.resolve();

  private constructor(http: Http, topic: string) {
    this.#http = http;
    this.#topic = topic;
  }

  /** Loads the state and starts to follow the topic. Retries while the server cannot be reached. `signal` closes the view. */
  static async load<T = unknown>(
    http: Http,
    topic: string,
    options: { signal?: AbortSignal } = {},
  ): Promise<StateView<T>> {
    const view = new StateView<T>(http, topic);
    await new Promise<void>((loaded, failed) => {
      view.#closed = view.#run(options.signal, loaded, failed);
    });
    return view;
  }

  /** Resolves when the view has stopped following its topic: it was closed, or it failed with `error`. Never rejects. */
  get closed(): Promise<void> {
    return this.#closed;
  }

  get(key: string): StoredEvent<T> | undefined {
    return this.#events.get(key);
  }

  has(key: string): boolean {
    return this.#events.has(key);
  }

  /** The keys and their events, in seq order. */
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
   * Iterates over the changes from now on. If the reader cannot keep up, several changes of a key are merged into one. The iterator
   * ends when the view is closed, and throws if the view fails.
   */
  [Symbol.asyncIterator](): AsyncIterableIterator<StateChange<T>> {
    const pending: Pending<T> = new Map();
    const active = this.#iterators.add(pending);
    const next = async (): Promise<IteratorResult<StateChange<T>>> => {
      while (active.has(pending)) {
        for (const [key, value] of pending) {
          pending.delete(key);
          return { done: false, value };
        }
        if (this.#stop.signal.aborted) {
          active.delete(pending);
          if (this.#error) throw this.#error;
        } else {
          await new Promise<void>((resume) => this.#waiting.push(resume));
        }
      }
      return { done: true, value: undefined };
    };
    return {
      next,
      return: () => {
        active.delete(pending);
        this.#wake();
        return next();
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  /** Stops following the topic and ends the iterators. The loaded state can still be read. */
  close(): void {
    for (const pending of this.#iterators) pending.clear();
    this.#stop.abort();
    this.#wake();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Loads the state and applies events until the view is closed or fails. Never rejects. */
  async #run(outer: AbortSignal | undefined, onLoad: () => void, onFailure: (error: unknown) => void): Promise<void> {
    const http = this.#http;
    const { signal } = this.#stop;
    const release = onAbort(outer, () => this.#stop.abort(outer?.reason));
    const backoff = retryBackoff();
    try {
      while (!http.closed.aborted) {
        try {
          await this.#load();
          onLoad();
          const from = this.#position ? { afterId: this.#position.id } : "earliest";
          for await (const event of tail<T>(http, this.#topic, { from, signal, resumeAfterEvents: true })) {
            this.#apply(event);
            backoff.reset();
          }
        } catch (error) {
          // After `unknown_id` (the server was restored to an older state, or the topic was deleted) the state is loaded again.
          await http.retryAfter(error, backoff, signal, "unknown_id");
        }
      }
      onFailure(new ClosedError());
    } catch (error) {
      if (!signal.aborted && !(error instanceof ClosedError)) this.#error = error as PrombusError;
      onFailure(error);
    }
    release();
    this.#stop.abort();
    this.#wake();
  }

  async #load(): Promise<void> {
    const path = `/state/${encodeURIComponent(this.#topic)}`;
    const events = new Map<string, StoredEvent<T>>();
    let page: StatePage<T> | undefined;
    do {
      page = await this.#http.json<StatePage<T>>("GET", path, {
        query: { next: page?.next ?? undefined }, signal: this.#stop.signal,
      });
      for (const event of page.events) events.set(event.key as string, event);
    } while (page.next);
    const old = this.#events;
    this.#events = events;
    // All pages have the position of the first page.
    this.#position = page.position ?? undefined;
    for (const [key, previous] of old) if (!events.has(key)) this.#changed(key, undefined, previous);
    for (const [key, event] of events) {
      const previous = old.get(key);
      if (previous?.id !== event.id) this.#changed(key, event, previous);
    }
  }

  #apply(event: StoredEvent<T>): void {
    const { id, seq, key } = event;
    this.#position = { id, seq };
    if (key === undefined || event.addressee) return;
    const previous = this.#events.get(key);
    const current = event.payload === null ? undefined : event;
    // Deleting the key first moves it to the end: the keys stay in seq order.
    this.#events.delete(key);
    if (current) this.#events.set(key, current);
    this.#changed(key, current, previous);
  }

  #changed(key: string, event: StoredEvent<T> | undefined, last: StoredEvent<T> | undefined): void {
    for (const pending of this.#iterators) {
      const change = pending.get(key);
      const previous = change ? change.previous : last;
      // If a key was created and deleted again before the iterator returned it, there is no change to return.
      if (event || previous) pending.set(key, { key, event, previous });
      else pending.delete(key);
    }
    this.#wake();
  }

  #wake(): void {
    for (const resume of this.#waiting.splice(0)) resume();
  }
}
