/** Exponential backoff with jitter, so that clients do not reconnect all at once. */
import type { Millis } from "./types.js";

export class Backoff {
  readonly #minMs: Millis;
  readonly #maxMs: Millis;
  #attempt = 0;

  constructor(minMs: Millis = 100, maxMs: Millis = 5_000) {
    this.#minMs = minMs;
    this.#maxMs = maxMs;
  }

  /** The number of calls of `next` since the last `reset`. */
  get attempt(): number {
    return this.#attempt;
  }

  /**
   * Returns how long to wait: a random time from half of the full wait to the full wait, which doubles with each call up to `maxMs`.
   */
  next(): Millis {
    const full = Math.min(this.#maxMs, this.#minMs * 2 ** this.#attempt);
    this.#attempt += 1;
    return full / 2 + Math.random() * (full / 2);
  }

  reset(): void {
    this.#attempt = 0;
  }
}
