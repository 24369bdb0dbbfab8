/** One event that this client holds: its lease, and the context that handlers see. */
import { PrombusError } from "./errors.js";
import type { EventFrame } from "./frames.js";
import type { DeliveryContext, Millis, RedeliveryReason, StoredEvent } from "./types.js";

/** What a lease needs of its subscription. */
export interface LeaseOwner {
  readonly topic: string;
  readonly group: string;
  /** Asks the server for more time. */
  extend(lease: Lease, ms: Millis | undefined): Promise<void>;
}

export class Lease implements DeliveryContext {
  readonly event: StoredEvent;
  readonly key: string;
  /** Since when its handler works on it; before that the lease is extended without a limit. */
  startedAt = Infinity;
  readonly #owner: LeaseOwner;
  #controller: AbortController | undefined;
  #lostBecause: PrombusError | undefined;
  readonly subscription: string;
  readonly group: string;
  attempt!: number;
  maxAttempts!: number;
  reason: RedeliveryReason | undefined;
  lastError: string | undefined;
  /** The connection that the lease came over. */
  epoch = 0;
  leaseUntil: Millis = 0;
  isExtending = false;
  /** A seek has ended it: its verdict must not settle a later delivery of the event. */
  isVoid = false;

  constructor(owner: LeaseOwner, key: string, frame: EventFrame, epoch: number) {
    this.#owner = owner;
    this.key = key;
    this.subscription = owner.topic;
    this.group = owner.group;
    this.event = frame.event;
    this.renew(frame, epoch);
  }

  /** The event was delivered again while it is still being handled here: its new lease continues the old one. */
  renew({ ctx }: EventFrame, epoch: number): void {
    this.attempt = ctx.attempt;
    this.maxAttempts = ctx.max_attempts;
    this.reason = ctx.reason;
    this.lastError = ctx.last_error;
    this.epoch = epoch;
    this.isExtending = false;
    // A signal that has aborted stays so; who asks for one now gets one of the new lease.
    if (this.#lostBecause !== undefined) this.#controller = undefined;
    this.#lostBecause = undefined;
    this.leaseUntil = Date.now() + ctx.ack_deadline_ms;
  }

  /** The event is no longer this member's. */
  lose(why: PrombusError): void {
    this.#lostBecause ??= why;
    this.#controller?.abort(this.#lostBecause);
  }

  /** Whether its time has passed, also if nobody has looked since. */
  get isOver(): boolean {
    return this.isLost || this.leaseUntil <= Date.now();
  }

  get isLost(): boolean {
    return this.#lostBecause !== undefined;
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#lostBecause !== undefined) this.#controller.abort(this.#lostBecause);
    }
    return this.#controller.signal;
  }

  // A property, so that handlers can take it out of the context.
  readonly extend = (ms?: Millis): Promise<void> => this.#owner.extend(this, ms);
}
