/**
 * One subscription of the sketch's classes over the client: events go to a handler, and are settled by id.
 *
 * The client lets an event that is still held here adopt the lease of its redelivery. The sketch calls the handler for each
 * delivery, so the receiver watches the attempts of what it holds.
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

  /** `handle` must not reject. `onEnd` gets the error when the server ends the subscription. */
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

  /** Joins the group; resolves with whether it is new. Does nothing after `end()`. */
  async start(): Promise<boolean> {
    if (this.#isEnded) return false;
    const consumer = this.client.consume(this.topic, this.group, this.#options);
    this.#consumer = consumer;
    const isNew = await consumer.join();
    void this.#receive(consumer);
    return isNew;
  }

  /** Leaves the group. Handlers that run have a second to end; what is not settled then goes to other members. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop().finally(() => { this.#stopping = undefined; });
    return this.#stopping;
  }

  /** Leaves the group for good. Events can be found and settled until it resolves. */
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

  /** The event of this topic (or of the subscription) and id, if it is held here. */
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
        // The server redelivers events that arrive after the stop.
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

  /** Calls the handler again for events whose lease expired and that were delivered here again. */
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

/** The options for the wire: those of the sketch with its defaults. */
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
