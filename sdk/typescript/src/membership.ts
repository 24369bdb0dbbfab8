/**
 * One membership in a consumer group. It sends SUBSCRIBE, and again after each reconnect; it holds delivered events, extends their
 * leases (the time for which the server gives an event to this member), and settles them. `subscription.ts` and `consumer.ts` pass the
 * events to the user's code.
 *
 * After a reconnect the server redelivers unsettled events. If the handler of such an event is still running, the event gets the
 * new lease. If its handler ended while the connection was down, the kept result settles the redelivery. Both require that the
 * event is redelivered to this member: another member may have received it in the meantime.
 */
import { Backoff } from "./backoff.js";
import type { Connection } from "./connection.js";
import { ClosedError, ConnectionError, isTemporary, PrombusError, serverError } from "./errors.js";
import type { EventFrame } from "./frames.js";
import { Lease, type LeaseOwner } from "./lease.js";
import type { Millis, NackOptions, Settlement, SubscribeOptions } from "./types.js";

/** The result of handling an event: ack or nack. */
export type Verdict = { ok: true } | ({ ok: false; reason?: string | undefined } & NackOptions);

/** A verdict that possibly did not reach the server. */
interface Result {
  verdict: Verdict;
  /** The result is ignored after this time. */
  until: Millis;
  /** Whether the verdict was sent. It may have been lost with the connection. */
  wasSent: boolean;
}

/** The callbacks of a membership. */
export interface MembershipUser {
  /** What a redelivery does to a held event whose lease is lost: true calls `arrived` again, false only renews the lease. */
  readonly takesLostAgain: boolean;
  /** Called when an event has arrived that is not held yet. */
  arrived(lease: Lease): void;
  /** Must drop the events that have not been passed to the user's code: the server redelivers them. */
  disconnected(): void;
  /** Called when the membership has ended, with an error if the server ended it. `isReported`: a call or another event reports it. */
  ended(error: PrombusError | undefined, isReported: boolean): void;
}

const DRAIN_TIMEOUT_MS = 30_000;
const DEFAULT_LEASE_MS = 30_000;
const DEFAULT_MAX_EXTENSION_MS = 3_600_000;
const DEFAULT_MAX_IN_FLIGHT = 100;
/**
 * How many results are kept for the redelivery of their event, and for how long. After that time, a repeated delivery is more
 * likely a deliberate seek by an operator.
 */
const MAX_RESULTS = 10_000;
const RESULT_TTL_MS = 300_000;
/** A sent ack is kept this long: it may be lost with a connection that turns out to be dead. */
const SENT_ACK_TTL_MS = 60_000;
/** The server keeps this many characters of a reason; a longer reason could exceed its frame size limit. */
const MAX_REASON = 4096;
const MAX_NACK_DELAY_MS = 3_600_000;

export class Membership implements LeaseOwner {
  readonly topic: string;
  readonly group: string;
  readonly #connection: Connection;
  readonly #options: SubscribeOptions;
  readonly #user: MembershipUser;
  readonly #onEnd: () => void;
  readonly #held = new Map<string, Lease>();
  /** The newer and the older half of the results. Dropping a whole half is cheaper than dropping the oldest result each time. */
  #results = new Map<string, Result>();
  #olderResults = this.#results;
  readonly #ackStart: string;
  readonly #leaseMs: Millis;
  readonly #backoff = new Backoff();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #retryTimer: ReturnType<typeof setTimeout> | undefined;
  /**
   * Whether SUBSCRIBE was sent over the current connection. The server handles frames in order, so later frames need not wait for OK.
   */
  #isSubscribed = false;
  #isStopping = false;
  #isOver = false;
  #isPaused = false;
  #draining: Promise<void> | undefined;
  #onSettled: (() => void) | undefined;
  #isProbing = false;
  #strayError: PrombusError | undefined;
  #hasJoined = false;
  #joined: { resolve: (created: boolean) => void; reject: (error: unknown) => void } | undefined;

  constructor(
    connection: Connection,
    topic: string,
    group: string,
    options: SubscribeOptions,
    user: MembershipUser,
    onEnd: () => void,
  ) {
    this.#connection = connection;
    this.topic = topic;
    this.group = group;
    this.#options = options;
    this.#leaseMs = options.ackTimeoutMs ?? DEFAULT_LEASE_MS;
    this.#user = user;
    this.#onEnd = onEnd;
    this.#ackStart = `{"op":"ACK","topic":${JSON.stringify(topic)},"group":${JSON.stringify(group)},"id":"`;
  }

  /** Joins the group as soon as there is a connection; resolves with whether this created the group. */
  join(): Promise<boolean> {
    if (this.#isOver) return Promise.reject(new ClosedError("the subscription ended"));
    return new Promise((resolve, reject) => {
      this.#hasJoined = true;
      this.#joined = { resolve, reject };
      if (this.#connection.state === "connected") this.connected();
    });
  }

  connected(): void {
    void this.#subscribe();
  }

  lost(): void {
    this.#isSubscribed = false;
    clearTimeout(this.#retryTimer);
    this.#user.disconnected();
  }

  event(frame: EventFrame): void {
    const { event } = frame;
    const key = event.topic === this.topic ? event.id : `${event.topic} ${event.id}`;
    const known = this.#held.get(key);
    if (known !== undefined && !(known.isLost && this.#user.takesLostAgain)) return known.renew(frame, this.#connection.epoch);
    if (this.#isStopping) return;
    const lease = new Lease(this, key, frame, this.#connection.epoch);
    const result = this.#results.get(key) ?? this.#olderResults.get(key);
    if (result !== undefined) {
      this.#results.delete(key);
      this.#olderResults.delete(key);
      if (applies(result, frame.ctx)) return this.#settleLease(lease, result.verdict);
    }
    this.#hold(lease);
    this.#user.arrived(lease);
  }

  /** Stops holding an event. Its lease is not extended any more. */
  drop(lease: Lease): void {
    // A later delivery of the same event may have replaced this one.
    if (this.#held.get(lease.key) === lease) this.#held.delete(lease.key);
    this.#onSettled?.();
  }

  /** Settles an event without waiting for the answer. */
  settle(lease: Lease, verdict: Verdict): void {
    if (lease.isVoid) return;
    this.drop(lease);
    if (this.#owns(lease)) this.#settleLease(lease, verdict);
    else this.#remember(lease, verdict);
  }

  /** Settles an event and waits until that is durable. An event whose verdict the server refused stays held. */
  async settleDurably(lease: Lease, verdict: Verdict): Promise<Settlement> {
    if (lease.isVoid) return "stale";
    this.drop(lease);
    if (!this.#owns(lease)) return this.#remember(lease, verdict);
    try {
      const { stale } = await this.#connection.request({ ...this.#about(), ...verdictFrame(lease, verdict) });
      if (stale !== true) return "settled";
      lease.lose(new PrombusError("unknown_id", `the lease of ${lease.event.id} is lost`));
      return "stale";
    } catch (thrown) {
      // The answer was lost, and maybe the frame as well.
      if (thrown instanceof ConnectionError) return this.#remember(lease, verdict);
      // On a full disk the verdict still applies; it becomes durable later.
      const isSettled = (thrown as PrombusError).code === "storage_full";
      if (!isSettled && !this.#isOver && !this.#held.has(lease.key)) this.#hold(lease);
      throw thrown;
    }
  }

  async extend(lease: Lease, ms: Millis = this.#leaseMs): Promise<void> {
    if (lease.isLost || this.#held.get(lease.key) !== lease) {
      throw new PrombusError("unknown_id", `the lease of ${lease.event.id} is lost`);
    }
    if (!this.#owns(lease)) throw new ConnectionError("not connected");
    const askedAt = Date.now();
    const { epoch } = lease;
    try {
      await this.#connection.request({ op: "MODACK", ...this.#about(), id: lease.event.id, extend_ms: ms });
      if (lease.epoch === epoch) lease.leaseUntil = askedAt + Math.max(ms, 1000);
    } catch (thrown) {
      if (thrown instanceof PrombusError && thrown.code === "unknown_id" && lease.epoch === epoch) lease.lose(thrown);
      throw thrown;
    }
  }

  async pause(isPaused: boolean): Promise<void> {
    this.#isPaused = isPaused;
    if (!this.#isSubscribed) return; // sent with the next SUBSCRIBE
    try {
      await this.#connection.request({ op: isPaused ? "PAUSE" : "RESUME", ...this.#about() });
    } catch (thrown) {
      if (!(thrown instanceof ConnectionError)) throw thrown;
    }
  }

  /** Whether the membership is ending: then no further events may be passed to the user's code. */
  get isStopping(): boolean {
    return this.#isStopping;
  }

  /** Stops deliveries, waits for at most `timeoutMs` until started events are settled, and leaves the group. */
  drain(timeoutMs: Millis = DRAIN_TIMEOUT_MS): Promise<void> {
    this.#draining ??= this.#drain(timeoutMs);
    return this.#draining;
  }

  async #drain(timeoutMs: Millis): Promise<void> {
    this.#isStopping = true;
    this.pause(true).catch(() => {});
    await new Promise<void>((resolve) => {
      const late = setTimeout(resolve, timeoutMs);
      this.#onSettled = () => {
        for (const { startedAt } of this.#held.values()) if (startedAt < Infinity) return;
        clearTimeout(late);
        resolve();
      };
      this.#onSettled();
    });
    await this.leave();
  }

  /** Leaves the group: unsettled events go to other members, which does not count as an attempt. */
  async leave(): Promise<void> {
    if (this.#isOver) return;
    this.#isStopping = true;
    if (this.#isSubscribed) {
      await this.#connection.request({ op: "UNSUBSCRIBE", ...this.#about() }).catch(() => {});
    }
    this.end(undefined);
  }

  /** Finds out whether `strayError`, an ERR frame that does not name a subscription, ended this subscription. */
  async probe(strayError: PrombusError): Promise<void> {
    if (!this.#isSubscribed || this.#isStopping) return;
    this.#strayError = strayError;
    if (this.#isProbing) return;
    this.#isProbing = true;
    try {
      await this.#connection.request({ op: this.#isPaused ? "PAUSE" : "RESUME", ...this.#about() });
    } catch (thrown) {
      if (!(thrown instanceof PrombusError) || thrown.code !== "not_subscribed" || !this.#isSubscribed) return;
      const what = `the server ended the subscription to ${this.topic} as group ${this.group}`;
      this.#failed(serverError(strayError.code, `${what}: ${strayError.message}`, { cause: strayError }));
    } finally {
      this.#isProbing = false;
      // The answer may be older than an ERR that arrived in the meantime: probe again.
      if (this.#strayError !== strayError) void this.probe(this.#strayError);
    }
  }

  /** Ends the membership. */
  end(error: PrombusError | undefined): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#isStopping = true;
    this.#isSubscribed = false;
    clearTimeout(this.#timer);
    clearTimeout(this.#retryTimer);
    this.#forgetResults();
    const lost = error ?? new ClosedError("the subscription ended");
    for (const lease of this.#held.values()) lease.lose(lost);
    this.#held.clear();
    this.#onSettled?.();
    this.#onEnd();
    const isReported = this.#joined !== undefined || this.#connection.state === "closed";
    this.#joined?.reject(lost);
    this.#joined = undefined;
    this.#user.ended(error, isReported);
  }

  /** Voids held events and kept results after a seek moved the group. If the events are delivered again, they are handled again. */
  forgetHeld(): void {
    this.#forgetResults();
    this.#user.disconnected();
    for (const lease of this.#held.values()) {
      lease.isVoid = true;
      lease.lose(new PrombusError("unknown_id", "a seek has ended the lease"));
    }
    this.#held.clear();
  }

  async #subscribe(): Promise<void> {
    if (this.#isOver || this.#isStopping || !this.#hasJoined) return;
    const { epoch } = this.#connection;
    const asked = this.#connection.request({ op: "SUBSCRIBE", ...this.#about(), opts: wireOptions(this.#options) });
    this.#isSubscribed = true;
    if (this.#isPaused) this.pause(true).catch(() => {});
    try {
      const ok = await asked;
      this.#backoff.reset();
      this.#joined?.resolve(ok.created === true);
      this.#joined = undefined;
    } catch (thrown) {
      // If the connection was lost, the next connection subscribes again.
      if (this.#isOver || this.#connection.epoch !== epoch || thrown instanceof ConnectionError) return;
      this.#failed(thrown as PrombusError);
    }
  }

  /** Called when the server refused or ended the subscription: subscribes again after a temporary error, otherwise ends. */
  #failed(error: PrombusError): void {
    this.#isSubscribed = false;
    if (!isTemporary(error)) return this.end(error);
    clearTimeout(this.#retryTimer);
    this.#retryTimer = setTimeout(() => void this.#subscribe(), error.retryAfterMs ?? this.#backoff.next());
    // The server redelivers the events that the user's code has not received.
    this.#user.disconnected();
  }

  #hold(lease: Lease): void {
    this.#held.set(lease.key, lease);
    this.#startTimer();
  }

  #about(): { topic: string; group: string } {
    return { topic: this.topic, group: this.group };
  }

  /** Whether the lease belongs to the current connection. */
  #owns(lease: Lease): boolean {
    return !this.#isOver && lease.epoch === this.#connection.epoch && this.#connection.state === "connected";
  }

  #settleLease(lease: Lease, verdict: Verdict): void {
    if (verdict.ok) {
      this.#connection.send(`${this.#ackStart}${lease.event.id}"}`);
      this.#keep(lease, { verdict, until: Date.now() + SENT_ACK_TTL_MS, wasSent: true });
    } else {
      this.#connection.send(JSON.stringify({ ...this.#about(), ...verdictFrame(lease, verdict) }));
    }
  }

  #remember(lease: Lease, verdict: Verdict): Settlement {
    if (this.#isOver) return "stale";
    this.#keep(lease, { verdict, until: Date.now() + RESULT_TTL_MS, wasSent: false });
    return "deferred";
  }

  #keep(lease: Lease, result: Result): void {
    this.#results.set(lease.key, result);
    if (this.#results.size >= MAX_RESULTS / 2) {
      this.#olderResults = this.#results;
      this.#results = new Map();
    }
  }

  #forgetResults(): void {
    this.#results = this.#olderResults = new Map();
  }

  #startTimer(): void {
    if (this.#timer !== undefined) return;
    const everyMs = Math.min(Math.max(this.#leaseMs / 10, 50), 1000);
    const tick = (): void => {
      this.#watchLeases(this.#leaseMs / 2 + everyMs);
      this.#timer = this.#held.size === 0 || this.#isOver ? undefined : setTimeout(tick, everyMs);
    };
    this.#timer = setTimeout(tick, everyMs);
  }

  /** Extends each lease before half of its time has passed, and aborts the signals of expired leases. */
  #watchLeases(reserveMs: Millis): void {
    const now = Date.now();
    const maxMs = this.#options.maxExtensionMs ?? DEFAULT_MAX_EXTENSION_MS;
    for (const lease of this.#held.values()) {
      if (now >= lease.leaseUntil) {
        lease.lose(new PrombusError("timeout", `the lease of ${lease.event.id} has ended`));
      } else if (
        (this.#options.autoExtend ?? true) && !lease.isExtending && this.#owns(lease) &&
        lease.leaseUntil - now < reserveMs && now - lease.startedAt < maxMs
      ) {
        lease.isExtending = true;
        this.extend(lease).catch(() => {}).finally(() => { lease.isExtending = false; });
      }
    }
  }
}

/** Whether a kept result settles this delivery of its event. */
function applies({ verdict, until, wasSent }: Result, { reason }: EventFrame["ctx"]): boolean {
  return until > Date.now() &&
    // A kept nack does not settle a redelivery that a nack caused, maybe this very nack: the event is handled again.
    (verdict.ok || reason !== "nacked") &&
    // A delivery without a reason is not a redelivery: the sent ack arrived, and then a seek moved the group.
    (!wasSent || reason !== undefined);
}

function verdictFrame(lease: Lease, verdict: Verdict): Record<string, unknown> {
  const { id } = lease.event;
  if (verdict.ok) return { op: "ACK", id };
  const { reason, delayMs, dead } = verdict;
  // The server would refuse a NACK with a delay out of range, and the event would stay leased.
  const delay_ms = delayMs && Math.min(Math.max(Math.round(delayMs), 0), MAX_NACK_DELAY_MS);
  return { op: "NACK", id, reason: reason?.slice(0, MAX_REASON), delay_ms, dead };
}

function wireOptions(options: SubscribeOptions): Record<string, unknown> {
  const { autoExtend: _, maxExtensionMs: __, from, ...wire } = options;
  const { concurrency = 1, ...rest } = wire as typeof wire & { concurrency?: number };
  const start = typeof from === "object"
    ? "ts" in from ? { from: "ts", ts: from.ts } : { from: "afterId", afterId: from.afterId }
    : { from };
  return { maxInFlight: Math.max(concurrency, DEFAULT_MAX_IN_FLIGHT), ...rest, ...start };
}
