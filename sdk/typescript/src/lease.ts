/** One event that this client holds: its lease, and the context that its handler receives. */
import { PrombusError } from "./errors.js";
import type { EventFrame } from "./frames.js";
import type { DeliveryContext, Millis, RedeliveryReason, StoredEvent } from "./types.js";

/** The part of a subscription that a lease uses. */
export interface LeaseOwner {
  readonly topic: string;
  readonly group: string;
  /** Asks the server to extend the lease. */
  extend(lease: Lease, ms: Millis | undefined): Promise<void>;
}

export class Lease implements DeliveryContext {
  readonly event: StoredEvent;
  readonly key: string;
  /** When the event's handler started; `Infinity` before that. `maxExtensionMs` limits the extensions only from then on. */
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
  /** The number of the connection that delivered the event (`Connection.epoch`). */
  epoch = 0;
  leaseUntil: Millis = 0;
  isExtending = false;
  /** Whether a seek voided the lease. If so, the handler's verdict must not settle a later delivery of the event. */
  isVoid = false;

  constructor(owner: LeaseOwner, key: string, frame: EventFrame, epoch: number) {
    this.#owner = owner;
    this.key = key;
    this.subscription = owner.topic;
    this.group = owner.group;
    this.event = frame.event;
    this.renew(frame, epoch);
  }

  /** Replaces the lease when the event was redelivered while its handler is still running. */
  renew({ ctx }: EventFrame, epoch: number): void {
    this.attempt = ctx.attempt;
    this.maxAttempts = ctx.max_attempts;
    this.reason = ctx.reason;
    this.lastError = ctx.last_error;
    this.epoch = epoch;
    this.isExtending = false;
    // An aborted signal cannot be reset, so `signal` returns a new one for the new lease.
    if (this.#lostBecause !== undefined) this.#controller = undefined;
    this.#lostBecause = undefined;
    this.leaseUntil = Date.now() + ctx.ack_deadline_ms;
  }

  /** Marks the lease as lost and aborts the signal. */
  lose(why: PrombusError): void {
    this.#lostBecause ??= why;
    this.#controller?.abort(this.#lostBecause);
  }

  /** Whether the lease is lost or has expired, even if `lose` was not called yet. */
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

  // A property instead of a method, so that handlers can destructure the context.
  readonly extend = (ms?: Millis): Promise<void> => this.#owner.extend(this, ms);
}
