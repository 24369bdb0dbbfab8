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

  /** Failures since the last success. */
  get attempt(): number {
    return this.#attempt;
  }

  /** The next wait: half of it is fixed, half is random. */
  next(): Millis {
    const full = Math.min(this.#maxMs, this.#minMs * 2 ** this.#attempt);
    this.#attempt += 1;
    return full / 2 + Math.random() * (full / 2);
  }

  reset(): void {
    this.#attempt = 0;
  }
}
