/**
 * One subscription of the sketch's classes: passes events from the client to a handler, and settles them by id.
 *
 * If a held event is redelivered before the client has found its lease lost, the client only renews the lease and does not report a
 * new delivery. The sketch calls the handler for each delivery, so the receiver watches the attempt numbers of the events that it
 * holds.
 */
import type { Client } from "../client.js";
import type { Consumer } from "../consumer.js";
import { messageOf } from "../errors.js";
import type { Delivery, Millis, NackOptions, Settlement, SubscribeOptions, UUID } from "../types.js";

const DRAIN_MS = 1_000;
const LEASE_MS = 30_000;
const MIN_WATCH_MS = 10;
const MAX_WATCH_MS = 250;

interface Held {
  delivery: Delivery;
  attempt: number;
}

export class Receiver {
  readonly topic: string;
  readonly group: string;
  readonly client: Client;
  readonly #options: SubscribeOptions;
  readonly #handle: (delivery: Delivery) => Promise<void>;
  readonly #onEnd: (error: unknown) => void;
  readonly #held = new Map<string, Held>();
  #consumer: Consumer | undefined;
  #stopping: Promise<void> | undefined;
  #isEnded = false;
  #running = 0;
  #onIdle: () => void = () => {};
  #watchTimer: ReturnType<typeof setTimeout> | undefined;

  /** `handle` must not reject. `onEnd` is called with the error when the server ends the subscription. */
  constructor(
    client: Client,
    topic: string,
    group: string,
    options: SubscribeOptions,
    handle: (delivery: Delivery) => Promise<void>,
    onEnd: (error: unknown) => void,
  ) {
    this.client = client;
    this.topic = topic;
    this.group = group;
    this.#options = options;
    this.#handle = handle;
    this.#onEnd = onEnd;
  }

  /** Joins the group; resolves with whether this created the group. Does nothing after `end()`. */
  async start(): Promise<boolean> {
    if (this.#isEnded) return false;
    const consumer = this.client.consume(this.topic, this.group, this.#options);
    this.#consumer = consumer;
    const isNew = await consumer.join();
    void this.#receive(consumer);
    return isNew;
  }

  /** Waits up to a second for running handlers, then leaves the group. Unsettled events go to other members. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop().finally(() => { this.#stopping = undefined; });
    return this.#stopping;
  }

  /** Leaves the group for good. `find`, `ack` and `nack` work until the promise resolves. */
  end(): Promise<void> {
    this.#isEnded = true;
    return this.stop();
  }

  async #stop(): Promise<void> {
    const consumer = this.#consumer;
    this.#consumer = undefined;
    if (consumer === undefined) return;
    await consumer.pause().catch(() => {});
    if (this.#running > 0) {
      await new Promise<void>((resolve) => {
        const late = setTimeout(resolve, DRAIN_MS);
        this.#onIdle = () => {
          clearTimeout(late);
          resolve();
        };
      });
    }
    clearTimeout(this.#watchTimer);
    this.#watchTimer = undefined;
    this.#held.clear();
    await consumer.close();
  }

  /** The held delivery with this id; `topic` is the event's topic or the subscription. */
  find(topic: string, id: UUID): Delivery | undefined {
    const exact = this.#held.get(`${topic} ${id}`);
    if (exact !== undefined || topic !== this.topic) return exact?.delivery;
    for (const { delivery } of this.#held.values()) {
      if (delivery.event.id === id) return delivery;
    }
    return undefined;
  }

  ack(delivery: Delivery): Promise<Settlement> {
    this.#held.delete(keyOf(delivery));
    return delivery.ack();
  }

  nack(delivery: Delivery, reason: string | undefined, options?: NackOptions): Promise<Settlement> {
    this.#held.delete(keyOf(delivery));
    return delivery.nack(reason, options);
  }

  async #receive(consumer: Consumer): Promise<void> {
    try {
      for (;;) {
        const { value } = await consumer.next();
        if (value === undefined) return;
        // Events that arrive after `stop` are ignored; the server redelivers them.
        if (this.#consumer !== consumer) continue;
        this.#held.set(keyOf(value), { delivery: value, attempt: value.ctx.attempt });
        this.#run(value);
        this.#watch();
      }
    } catch (thrown) {
      if (this.#consumer !== consumer) return;
      this.#consumer = undefined;
      this.#onEnd(thrown);
    }
  }

  #run(delivery: Delivery): void {
    this.#running += 1;
    void this.#handle(delivery).finally(() => {
      this.#running -= 1;
      if (this.#running === 0) this.#onIdle();
    });
  }

  /** Calls the handler again for held events whose lease expired and that were redelivered to this client. */
  #watch(): void {
    if (this.#options.autoExtend !== false) return;
    const everyMs = Math.min(Math.max((this.#options.ackTimeoutMs ?? LEASE_MS) / 8, MIN_WATCH_MS), MAX_WATCH_MS);
    this.#watchTimer ??= setTimeout(() => {
      this.#watchTimer = undefined;
      for (const held of this.#held.values()) {
        const { attempt } = held.delivery.ctx;
        if (attempt === held.attempt) continue;
        held.attempt = attempt;
        this.#run(held.delivery);
      }
      if (this.#held.size > 0) this.#watch();
    }, everyMs);
  }
}

export function warnOfEnd(error: unknown): void {
  console.warn(messageOf(error));
}

/** Converts the sketch's options to those of the client. With `isStrict`, leases are not extended automatically. */
export function wireOptions(
  options: SubscribeOptions & { maxInFlight?: number | undefined; ackTimeoutMs?: Millis | undefined },
  isStrict: boolean,
): SubscribeOptions {
  const wire: SubscribeOptions = { autoExtend: !isStrict };
  const names = [
    "from", "ts", "afterId", "batchSize", "maxInFlight", "ackTimeoutMs", "maxAttempts", "maxUnsettled", "filter", "topics", "name",
    "expireMs",
  ] as const;
  for (const name of names) {
    if (options[name] !== undefined) Object.assign(wire, { [name]: options[name] });
  }
  return wire;
}

function keyOf({ event }: Delivery): string {
  return `${event.topic} ${event.id}`;
}
