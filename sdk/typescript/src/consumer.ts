/// <reference lib="esnext.disposable" preserve="true" />
/** A subscription as an async iterator of deliveries, which the caller settles. */
import type { Connection } from "./connection.js";
import { ClosedError, type PrombusError } from "./errors.js";
import type { Lease } from "./lease.js";
import { Membership, type Verdict } from "./membership.js";
import { verdictOf } from "./subscription.js";
import { type Schemas, validate } from "./topics.js";
import type { Delivery, Settlement, StoredEvent, SubscribeOptions } from "./types.js";

/**
 * The deliveries of a group as an async iterator. The consumer joins the group at the first `next()`. Leaving the loop leaves the
 * group, and unsettled events go to other members. Reconnects do not end the iterator.
 */
export class Consumer<T = unknown> implements AsyncIterableIterator<Delivery<T>> {
  /** @internal */
  readonly member: Membership;
  readonly #schemas: Schemas | undefined;
  #joining: Promise<unknown> | undefined;
  #waiting: Lease[] = [];
  #takers: { resolve: (lease: Lease | undefined) => void; reject: (error: unknown) => void }[] = [];
  #isOver = false;
  #error: PrombusError | undefined;

  /** @internal */
  constructor(
    connection: Connection,
    topic: string,
    group: string,
    options: SubscribeOptions,
    schemas: Schemas | undefined,
    onEnd: (member: Membership) => void,
  ) {
    this.#schemas = schemas;
    this.member = new Membership(connection, topic, group, options, this, () => onEnd(this.member));
  }

  /** Joins the group now instead of at the first `next()`; resolves with whether the group is new. */
  async join(): Promise<boolean> {
    this.#joining ??= this.member.join();
    return (await this.#joining) === true;
  }

  async next(): Promise<IteratorResult<Delivery<T>, undefined>> {
    await this.join().catch((error: unknown) => {
      if (!this.#isOver || this.#error !== undefined) throw error;
    });
    for (;;) {
      const lease = (this.member.isStopping ? undefined : this.#waiting.shift()) ?? (await this.#take());
      if (lease === undefined) return { done: true, value: undefined };
      if (await this.#isValid(lease)) return { done: false, value: deliveryOf<T>(this.member, lease) };
    }
  }

  /** Leaves the group. Unsettled events go to other members. */
  async close(): Promise<void> {
    await this.member.leave();
  }

  async return(): Promise<IteratorResult<Delivery<T>, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  pause(): Promise<void> {
    return this.member.pause(true);
  }

  resume(): Promise<void> {
    return this.member.pause(false);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /**
   * If an event is redelivered after its lease was lost, the caller gets a new delivery. Only the caller knows whether it still works
   * on the old delivery, whose signal has told it that the lease is lost.
   * @internal
   */
  readonly takesLostAgain = true;

  /** @internal */
  arrived(lease: Lease): void {
    const taker = this.#takers.shift();
    if (taker === undefined) this.#waiting.push(lease);
    else taker.resolve(lease);
  }

  /** @internal */
  disconnected(): void {
    for (const lease of this.#waiting) this.member.drop(lease);
    this.#waiting = [];
  }

  /** @internal */
  ended(error: PrombusError | undefined): void {
    this.#isOver = true;
    this.#waiting = [];
    if (!(error instanceof ClosedError)) this.#error = error;
    for (const { resolve, reject } of this.#takers.splice(0)) {
      if (this.#error === undefined) resolve(undefined);
      else reject(this.#error);
    }
  }

  #take(): Promise<Lease | undefined> {
    if (this.#error !== undefined) return Promise.reject(this.#error);
    if (this.#isOver) return Promise.resolve(undefined);
    return new Promise((resolve, reject) => { this.#takers.push({ resolve, reject }); });
  }

  /** Whether an event matches its schema. If not, makes the event a dead letter. */
  async #isValid(lease: Lease): Promise<boolean> {
    const { event } = lease;
    try {
      if (this.#schemas !== undefined) event.payload = await validate(this.#schemas, event.topic, event.payload);
      return true;
    } catch (thrown) {
      this.member.settle(lease, verdictOf(thrown));
      return false;
    }
  }
}

/** The delivery that the caller settles. */
function deliveryOf<T>(member: Membership, lease: Lease): Delivery<T> {
  let settlement: Promise<Settlement> | undefined;
  lease.startedAt = Date.now();
  /** Only the first verdict is sent; later calls return its outcome. A verdict that the server refused can be repeated. */
  const settle = (verdict: Verdict): Promise<Settlement> => {
    if (settlement === undefined) {
      settlement = member.settleDurably(lease, verdict);
      // A caller that does not wait must not cause an unhandled rejection.
      settlement.catch(() => { settlement = undefined; });
    }
    return settlement;
  };
  return {
    event: lease.event as StoredEvent<T>,
    ctx: lease,
    ack: () => settle({ ok: true }),
    nack: (reason, options) => settle({ ok: false, reason, ...options }),
    extend: (ms) => lease.extend(ms),
  };
}
