/**
 * One membership in a consumer group: SUBSCRIBE and its repetition after a reconnect, the events that are held, their leases,
 * and how they are settled. `subscription.ts` and `consumer.ts` decide what happens with the events.
 *
 * After a reconnect the server delivers unsettled events again. An event that is still being handled here adopts its new
 * lease. An event whose handling ended while the connection was down is settled with that result when it returns. Both only
 * help if it returns to this member: another one may have received it meanwhile.
 */
import { Backoff } from "./backoff.js";
import type { Connection } from "./connection.js";
import { ClosedError, ConnectionError, PrombusError } from "./errors.js";
import type { EventFrame } from "./frames.js";
import { Lease, type LeaseOwner } from "./lease.js";
import type { Millis, NackOptions, Settlement, SubscribeOptions } from "./types.js";

/** How an event ended. */
export type Verdict = { ok: true } | ({ ok: false; reason?: string } & NackOptions);

/** What a membership tells its user. */
export interface MembershipUser {
  /** A new event is held. */
  arrived(lease: Lease): void;
  /** Events that were not handed out yet are gone: the server delivers them again. */
  disconnected(): void;
  /** The membership is over; with an error if the server ended it. */
  ended(error: PrombusError | undefined): void;
}

const DEFAULT_LEASE_MS = 30_000;
const DEFAULT_MAX_EXTENSION_MS = 3_600_000;
const DEFAULT_MAX_IN_FLIGHT = 100;
/** Results that wait for the redelivery of their event, and for how long: an operator who seeks later means it. */
const MAX_RESULTS = 10_000;
const RESULT_TTL_MS = 300_000;

/** Failed subscriptions that a later try can mend. */
const PASSING = new Set(["unavailable", "rate_limited", "storage_full", "unauthorized"]);

export class Membership implements LeaseOwner {
  readonly topic: string;
  readonly group: string;
  readonly #connection: Connection;
  readonly #options: SubscribeOptions;
  readonly #user: MembershipUser;
  readonly #onEnd: () => void;
  readonly #held = new Map<string, Lease>();
  readonly #results = new Map<string, { verdict: Verdict; until: Millis }>();
  readonly #ackStart: string;
  readonly #backoff = new Backoff(100, 5_000);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #retryTimer: ReturnType<typeof setTimeout> | undefined;
  #isSubscribed = false;
  #isStopping = false;
  #isOver = false;
  #isPaused = false;
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
    this.#user = user;
    this.#onEnd = onEnd;
    this.#ackStart = `{"op":"ACK","topic":${JSON.stringify(topic)},"group":${JSON.stringify(group)},"id":"`;
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  /** Joins the group as soon as there is a connection; resolves with whether the group is new. */
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
    if (known !== undefined) return known.renew(frame, this.#connection.epoch);
    if (this.#isStopping) return;
    const lease = new Lease(this, key, frame, this.#connection.epoch);
    const result = this.#results.get(key);
    if (result !== undefined) {
      this.#results.delete(key);
      if (result.until > Date.now()) return this.#settleLease(lease, result.verdict);
    }
    this.#held.set(key, lease);
    this.#startTimer();
    this.#user.arrived(lease);
  }

  /** Gives up a held event that nobody has seen: the server delivers it again. */
  drop(lease: Lease): void {
    this.#held.delete(lease.key);
  }

  /** Settles an event without waiting for the answer. */
  settle(lease: Lease, verdict: Verdict): void {
    this.#held.delete(lease.key);
    if (this.#owns(lease)) this.#settleLease(lease, verdict);
    else this.#remember(lease, verdict);
  }

  /** Settles an event and waits until that is durable. */
  async settleDurably(lease: Lease, verdict: Verdict): Promise<Settlement> {
    this.#held.delete(lease.key);
    if (!this.#owns(lease)) return this.#remember(lease, verdict);
    try {
      const { stale } = await this.#connection.request({ ...this.#about(), ...verdictFrame(lease, verdict) });
      if (stale !== true) return "settled";
      lease.lose(new PrombusError("unknown_id", `${lease.event.id} is no longer this member's`));
      return "stale";
    } catch (thrown) {
      // The answer was lost, maybe the frame as well.
      if (thrown instanceof ConnectionError) return this.#remember(lease, verdict);
      throw thrown;
    }
  }

  async extend(lease: Lease, ms: Millis = this.#leaseMs(lease)): Promise<void> {
    if (lease.isLost || !this.#held.has(lease.key)) {
      throw new PrombusError("unknown_id", `${lease.event.id} is settled or no longer this member's`);
    }
    if (!this.#owns(lease)) throw new ConnectionError("cannot extend a lease while the connection is down");
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
    if (!this.#isSubscribed) return; // repeated with the next SUBSCRIBE
    try {
      await this.#connection.request({ op: isPaused ? "PAUSE" : "RESUME", ...this.#about() });
    } catch (thrown) {
      if (!(thrown instanceof ConnectionError)) throw thrown;
    }
  }

  /** Nothing more arrives. Running handlers can still settle what they have. */
  async stopReceiving(): Promise<void> {
    this.#isStopping = true;
    await this.pause(true).catch(() => {});
  }

  /** Leaves the group: what is not settled goes to other members without counting as an attempt. */
  async leave(): Promise<void> {
    if (this.#isOver) return;
    this.#isStopping = true;
    if (this.#isSubscribed) {
      await this.#connection.request({ op: "UNSUBSCRIBE", ...this.#about() }).catch(() => {});
    }
    this.end(undefined);
  }

  /** Whether the server still knows this subscription; it ends here if not. */
  async probe(): Promise<void> {
    if (!this.#isSubscribed || this.#isStopping) return;
    try {
      await this.#connection.request({ op: this.#isPaused ? "PAUSE" : "RESUME", ...this.#about() });
    } catch (thrown) {
      if (thrown instanceof PrombusError && thrown.code === "not_subscribed") {
        const why = `the server ended the subscription of ${this.topic} as group ${this.group}`;
        this.end(new PrombusError("not_subscribed", `${why}: the group was deleted, or the token no longer allows it`));
      }
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
    this.#results.clear();
    const lost = error ?? new ClosedError("the subscription ended");
    for (const lease of this.#held.values()) lease.lose(lost);
    this.#held.clear();
    this.#onEnd();
    this.#joined?.reject(lost);
    this.#joined = undefined;
    this.#user.ended(error);
  }

  /** Forgets results of events that a seek makes the server deliver again. */
  forgetResults(): void {
    this.#results.clear();
  }

  async #subscribe(): Promise<void> {
    if (this.#isOver || this.#isStopping || !this.#hasJoined) return;
    const { epoch } = this.#connection;
    try {
      const ok = await this.#connection.request({ op: "SUBSCRIBE", ...this.#about(), opts: wireOptions(this.#options) });
      if (this.#isOver) return;
      this.#isSubscribed = true;
      this.#backoff.reset();
      if (this.#isPaused) await this.pause(true);
      this.#joined?.resolve(ok.created === true);
      this.#joined = undefined;
    } catch (thrown) {
      // After a lost connection the next one subscribes again.
      if (this.#connection.state === "closed" || this.#connection.epoch !== epoch) return;
      const error = thrown as PrombusError;
      if (error instanceof ConnectionError) return;
      if (PASSING.has(error.code)) {
        this.#retryTimer = setTimeout(() => void this.#subscribe(), error.retryAfterMs ?? this.#backoff.next());
      } else {
        this.end(error);
      }
    }
  }

  #about(): { topic: string; group: string } {
    return { topic: this.topic, group: this.group };
  }

  /** Whether the lease came over the connection that is up. */
  #owns(lease: Lease): boolean {
    return lease.epoch === this.#connection.epoch && this.#connection.state === "connected";
  }

  #settleLease(lease: Lease, verdict: Verdict): void {
    if (verdict.ok) this.#connection.send(`${this.#ackStart}${lease.event.id}"}`);
    else this.#connection.send(JSON.stringify({ ...this.#about(), ...verdictFrame(lease, verdict) }));
  }

  #remember(lease: Lease, verdict: Verdict): Settlement {
    if (this.#isOver) return "stale";
    this.#results.delete(lease.key);
    this.#results.set(lease.key, { verdict, until: Date.now() + RESULT_TTL_MS });
    const oldest = this.#results.size > MAX_RESULTS ? this.#results.keys().next() : undefined;
    if (oldest?.value !== undefined) this.#results.delete(oldest.value);
    return "deferred";
  }

  #leaseMs(lease: Lease): Millis {
    return this.#options.ackTimeoutMs ?? Math.max(lease.leaseUntil - lease.heldSince, DEFAULT_LEASE_MS);
  }

  #startTimer(): void {
    if (this.#timer !== undefined) return;
    const leaseMs = this.#options.ackTimeoutMs ?? DEFAULT_LEASE_MS;
    const everyMs = Math.min(Math.max(leaseMs / 10, 50), 1000);
    const tick = (): void => {
      this.#watchLeases(leaseMs);
      this.#timer = this.#held.size === 0 || this.#isOver ? undefined : setTimeout(tick, everyMs);
    };
    this.#timer = setTimeout(tick, everyMs);
  }

  /** Extends leases that are half over, and tells handlers whose lease has ended. */
  #watchLeases(leaseMs: Millis): void {
    const now = Date.now();
    const maxMs = this.#options.maxExtensionMs ?? DEFAULT_MAX_EXTENSION_MS;
    for (const lease of this.#held.values()) {
      if (now >= lease.leaseUntil) {
        lease.lose(new PrombusError("timeout", `the lease of ${lease.event.id} has ended`));
      } else if (
        (this.#options.autoExtend ?? true) && !lease.isExtending && this.#owns(lease) &&
        lease.leaseUntil - now < leaseMs / 2 && now - lease.heldSince < maxMs
      ) {
        lease.isExtending = true;
        this.extend(lease, Math.max(leaseMs, 1000)).catch(() => {}).finally(() => { lease.isExtending = false; });
      }
    }
  }
}

function verdictFrame(lease: Lease, verdict: Verdict): Record<string, unknown> {
  const { id } = lease.event;
  if (verdict.ok) return { op: "ACK", id };
  return { op: "NACK", id, reason: verdict.reason, delay_ms: verdict.delayMs, dead: verdict.dead };
}

function wireOptions(options: SubscribeOptions): Record<string, unknown> {
  const { autoExtend: _, maxExtensionMs: __, from, ...wire } = options;
  const { concurrency = 1, ...rest } = wire as typeof wire & { concurrency?: number };
  const start = typeof from === "object"
    ? "ts" in from ? { from: "ts", ts: from.ts } : { from: "afterId", afterId: from.afterId }
    : { from };
  return { maxInFlight: Math.max(concurrency, DEFAULT_MAX_IN_FLIGHT), ...rest, ...start };
}
