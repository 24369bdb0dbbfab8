/// <reference lib="esnext.disposable" preserve="true" />
/** A subscription with a handler: when the handler returns, the event is acked; when it throws, the event is nacked. */
import type { ClientEvents, Connection } from "./connection.js";
import type { Emitter } from "./emitter.js";
import { ClosedError, messageOf, NackError, type PrombusError, RejectError, ValidationError } from "./errors.js";
import type { Lease } from "./lease.js";
import { Membership, type Verdict } from "./membership.js";
import type { Telemetry } from "./telemetry.js";
import { type Schemas, validate } from "./topics.js";
import type { Handler, HandlerOptions, Millis } from "./types.js";

/** What a subscription uses to call the handler: schemas, tracing, and the emitter for failures. */
export interface HandlerTools {
  schemas: Schemas | undefined;
  telemetry: Telemetry | undefined;
  emitter: Emitter<ClientEvents>;
}

/** One member of a group, whose events are passed to a handler. */
export class Subscription {
  /** @internal */
  readonly member: Membership;
  readonly #handler: Handler;
  readonly #tools: HandlerTools;
  readonly #concurrency: number;
  #finish!: (error: PrombusError | undefined) => void;
  #waiting: Lease[] = [];
  #running = 0;

  /** Whether the subscription created the group. If not, `from` and `expireMs` had no effect. */
  created = false;
  /** Resolves when the subscription has ended: with an error if the server ended it, else with undefined. Never rejects. */
  readonly finished: Promise<PrombusError | undefined> = new Promise((resolve) => { this.#finish = resolve; });

  /** @internal */
  constructor(
    connection: Connection,
    topic: string,
    group: string,
    handler: Handler,
    options: HandlerOptions,
    tools: HandlerTools,
    onEnd: (member: Membership) => void,
  ) {
    this.#handler = handler;
    this.#tools = tools;
    this.#concurrency = Math.max(options.concurrency ?? 1, 1);
    this.member = new Membership(connection, topic, group, options, this, () => onEnd(this.member));
  }

  /** The topic or pattern. */
  get topic(): string {
    return this.member.topic;
  }

  get group(): string {
    return this.member.group;
  }

  /** Stops deliveries. Running handlers and their leases are not affected. */
  pause(): Promise<void> {
    return this.member.pause(true);
  }

  resume(): Promise<void> {
    return this.member.pause(false);
  }

  /**
   * Waits until running handlers have ended and their events are settled, for at most `timeoutMs` (default 30,000), then leaves the
   * group. Unhandled events go to other members, which does not count as an attempt.
   */
  unsubscribe(options: { timeoutMs?: Millis } = {}): Promise<void> {
    return this.member.drain(options.timeoutMs);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.unsubscribe();
  }

  /** If an event is redelivered while its handler is still running, only the lease is renewed: the handler must not run twice.
   * @internal */
  readonly takesLostAgain = false;

  /** @internal */
  arrived(lease: Lease): void {
    this.#waiting.push(lease);
    this.#pump();
  }

  /** @internal */
  disconnected(): void {
    for (const lease of this.#waiting) this.member.drop(lease);
    this.#waiting = [];
  }

  /** @internal */
  ended(error: PrombusError | undefined, isReported: boolean): void {
    this.#waiting = [];
    if (error !== undefined && !isReported) this.#tools.emitter.emit("error", error);
    this.#finish(error instanceof ClosedError ? undefined : error);
  }

  #pump(): void {
    let taken = 0;
    while (this.#running < this.#concurrency && taken < this.#waiting.length && !this.member.isStopping) {
      const lease = this.#waiting[taken] as Lease;
      taken += 1;
      if (lease.isOver) {
        // Another member may have the event. If it is redelivered to this member, `arrived` is called again.
        this.member.drop(lease);
        continue;
      }
      lease.startedAt = Date.now();
      this.#running += 1;
      void this.#run(lease);
    }
    if (taken > 0) this.#waiting.splice(0, taken);
  }

  async #run(lease: Lease): Promise<void> {
    const verdict = await this.#handle(lease);
    this.member.settle(lease, verdict);
    this.#running -= 1;
    this.#pump();
  }

  async #handle(lease: Lease): Promise<Verdict> {
    const { schemas, telemetry, emitter } = this.#tools;
    const { event } = lease;
    try {
      if (schemas !== undefined) event.payload = await validate(schemas, event.topic, event.payload);
      if (telemetry === undefined) await this.#handler(event, lease);
      else await telemetry.handle(event, lease, async () => this.#handler(event, lease));
      return { ok: true };
    } catch (thrown) {
      const { topic, group } = this.member;
      const { attempt } = lease;
      const { id } = event;
      // A failing handler must not go unnoticed.
      if (!emitter.emit("nack", { error: thrown, topic, group, id, attempt })) {
        console.warn(`prombus: a handler failed: ${topic} ${id}, attempt ${attempt}`, thrown);
      }
      return verdictOf(thrown);
    }
  }
}

/** The verdict for an event whose handler threw. An invalid payload stays invalid, so the event is given up at once. */
export function verdictOf(thrown: unknown): Verdict {
  const reason = messageOf(thrown);
  if (thrown instanceof RejectError || thrown instanceof ValidationError) return { ok: false, reason, dead: true };
  if (thrown instanceof NackError && thrown.delayMs !== undefined) return { ok: false, reason, delayMs: thrown.delayMs };
  return { ok: false, reason };
}
