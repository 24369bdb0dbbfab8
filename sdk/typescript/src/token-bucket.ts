/** A token bucket: limits the average rate and allows bursts. */

export class TokenBucket {
  readonly #capacity: number;
  readonly #refillPerSec: number;
  #tokens: number;
  #last: number;

  constructor({ capacity, refillPerSec }: { capacity: number; refillPerSec: number }) {
    this.#capacity = capacity;
    this.#tokens = capacity;
    this.#refillPerSec = refillPerSec;
    this.#last = Date.now();
  }

  /** Takes `n` tokens, or none if there are fewer than `n`. Returns whether it took them. */
  tryConsume(n = 1): boolean {
    this.#refill();
    if (this.#tokens < n) return false;
    this.#tokens -= n;
    return true;
  }

  /** How many tokens are missing for `n`. */
  deficit(n = 1): number {
    this.#refill();
    return Math.max(0, n - this.#tokens);
  }

  #refill(): void {
    const now = Date.now();
    // If the clock was set back, no tokens are added or removed.
    const seconds = Math.max(0, now - this.#last) / 1000;
    this.#tokens = Math.min(this.#capacity, this.#tokens + seconds * this.#refillPerSec);
    this.#last = now;
  }
}
