/** Implements the sketch's `EventBus` with a prombus server. `index.ts` says what the sketch is. */
import { Client, type ConnectOptions } from "../client.js";
import { messageOf, PrombusError } from "../errors.js";
import { verdictOf } from "../subscription.js";
import type { CursorPosition, Delivery, EventRecord, Millis, Start, StoredEvent, UUID } from "../types.js";
import { Receiver, warnOfEnd, wireOptions } from "./receiver.js";
import { type Ack, type EventBus, type EventHandler, type PublishOptions, retryDelayMs, type SubscribeOptions } from "./types.js";

const MAX_IN_FLIGHT = 1000;
const NOT_SENT = "the connection is down; the result is sent if the event is redelivered to this client";

export interface PrombusEventBusOptions extends ConnectOptions {
  /** Called with the error when the server ends a subscription, e.g. because its group was deleted. Default: `console.warn`. */
  onError?: (error: unknown) => void;
}

/**
 * The sketch's bus, connected to a server:
 *
 * ```ts
 * const bus = new PrombusEventBus("ws://127.0.0.1:8090", { token: process.env.WS_TOKEN });
 * await bus.subscribe("heartbeat.received", "ops", async (e) => console.log(e.payload), { from: "earliest" });
 * await bus.publish("heartbeat.received", { pid: 1234 });
 * await bus.close();
 * ```
 *
 * Up to `maxInFlight` (1000) handlers run at the same time. After its first failure an event is retried after 20 ms, after later
 * failures with the server's backoff.
 */
export class PrombusEventBus implements EventBus {
  readonly #url: string;
  readonly #options: PrombusEventBusOptions;
  /**
   * The first client is used for everything, except for further subscriptions to a group: a connection can join a group only once,
   * so each of these needs another client.
   */
  readonly #clients: [Client, ...Client[]];
  readonly #receivers = new Set<Receiver>();

  constructor(url: string, options: PrombusEventBusOptions = {}) {
    this.#url = url;
    this.#options = options;
    this.#clients = [new Client(url, options)];
  }

  /** The client that the bus uses. */
  get client(): Client {
    return this.#clients[0];
  }

  /** Resolves when the connection is up. */
  ready(options?: { timeoutMs?: Millis }): Promise<void> {
    return this.client.ready(options);
  }

  /** Resolves when the queue has room for another publish. Publishes are sent in the order of the calls. */
  whenWritable(): Promise<void> {
    return this.client.whenWritable();
  }

  /** Resolves with the event when it is durable. If the topic already had the id, resolves with the stored event. */
  async publish<T>(topic: string, payload: T, opts: PublishOptions = {}): Promise<EventRecord<T>> {
    const { ts = Date.now(), key, headers, tags, caused_by, sid, addressee } = opts;
    const { id, seq, duplicate } = await this.client.publish(topic, payload, { ...opts, ts });
    if (duplicate === true) {
      const stored = await this.#stored<T>(topic, seq).catch(() => undefined);
      if (stored?.id === id) return stored;
    }
    const event: EventRecord<T> = { id, seq, ts, topic, payload };
    for (const [name, value] of Object.entries({ key, headers, tags, caused_by, sid, addressee })) {
      if (value !== undefined) Object.assign(event, { [name]: value });
    }
    return event;
  }

  async subscribe(
    topic: string,
    group: string,
    handler: EventHandler,
    opts: Omit<SubscribeOptions, "group"> = {},
  ): Promise<() => Promise<void>> {
    const { filter, manualAck = false, ...options } = opts;
    const accepts = typeof filter === "function" ? filter : undefined;
    const wire = wireOptions(
      { maxInFlight: MAX_IN_FLIGHT, ...options, ...(typeof filter === "object" ? { filter } : {}) },
      manualAck || options.ackTimeoutMs !== undefined,
    );
    const handle = async (delivery: Delivery): Promise<void> => {
      const { event, ctx: { attempt, maxAttempts } } = delivery;
      try {
        if (accepts === undefined || accepts(event)) {
          await handler(event, { attempt, maxAttempts });
          if (manualAck) return;
        }
        await receiver.ack(delivery);
      } catch (thrown) {
        const verdict = verdictOf(thrown);
        if (verdict.ok) return;
        // The server refuses a delay for an event that is given up.
        const options = attempt <= 1 && verdict.dead !== true ? { delayMs: retryDelayMs(attempt), ...verdict } : verdict;
        // If the nack cannot be sent, the lease expires and the event is redelivered.
        await receiver.nack(delivery, verdict.reason, options).catch(() => {});
      }
    };
    const onEnd = (error: unknown): void => {
      this.#receivers.delete(receiver);
      (this.#options.onError ?? warnOfEnd)(error);
    };
    const receiver: Receiver = new Receiver(this.#clientFor(topic, group), topic, group, wire, handle, onEnd);
    this.#receivers.add(receiver);
    try {
      await receiver.start();
    } catch (thrown) {
      this.#receivers.delete(receiver);
      throw thrown;
    }
    return async () => {
      // Handlers that are still running may ack until this resolves.
      await receiver.end();
      this.#receivers.delete(receiver);
    };
  }

  /** Acks an event. `topic` is the subscription's topic or pattern, or the event's own topic. */
  ack(topic: string, group: string, id: UUID): Promise<Ack> {
    return this.#settle(topic, group, id, undefined, (receiver, delivery) => receiver.ack(delivery));
  }

  nack(topic: string, group: string, id: UUID, reason?: string): Promise<Ack> {
    return this.#settle(topic, group, id, reason, (receiver, delivery) => {
      const { attempt } = delivery.ctx;
      return receiver.nack(delivery, reason, attempt <= 1 ? { delayMs: retryDelayMs(attempt) } : {});
    });
  }

  getCursor(topic: string, group: string): Promise<CursorPosition | null> {
    return this.client.cursor(topic, group);
  }

  /** Moves a group to after `lastId`, or else to the first event at or after `lastTs`, or else to the first event. All leases become void. */
  async setCursor(topic: string, group: string, cursor: CursorPosition): Promise<void> {
    const own = [...this.#receivers].filter((receiver) => receiver.topic === topic && receiver.group === group);
    // All own members leave and join again: a client that did not send the SEEK would treat the redelivery of a held event as a
    // renewal of its lease, and not call the handler.
    for (const receiver of own) await receiver.stop();
    try {
      await moveGroup(this.client, topic, group, cursor);
    } finally {
      for (const receiver of own) await receiver.start();
    }
  }

  /** Leaves all groups and closes the connection. */
  async close(): Promise<void> {
    await Promise.all([...this.#receivers].map((receiver) => receiver.end()));
    this.#receivers.clear();
    await Promise.all(this.#clients.map((client) => client.close()));
  }

  async #settle(
    topic: string,
    group: string,
    id: UUID,
    reason: string | undefined,
    act: (receiver: Receiver, delivery: Delivery) => ReturnType<Receiver["ack"]>,
  ): Promise<Ack> {
    let isKnown = false;
    for (const receiver of this.#receivers) {
      if (receiver.group !== group) continue;
      isKnown ||= receiver.topic === topic;
      const delivery = receiver.find(topic, id);
      if (delivery === undefined) continue;
      try {
        const settlement = await act(receiver, delivery);
        if (settlement === "deferred") return { id, ok: false, err: NOT_SENT };
        const err = settlement === "stale" ? settlement : reason;
        return { id, ok: true, ...(err === undefined ? {} : { err }) };
      } catch (thrown) {
        return { id, ok: false, err: messageOf(thrown) };
      }
    }
    return isKnown ? { id, ok: true, err: "stale" } : { id, ok: false, err: `not subscribed to ${topic} as group ${group}` };
  }

  #clientFor(topic: string, group: string): Client {
    const members = [...this.#receivers].filter((receiver) => receiver.topic === topic && receiver.group === group);
    const free = this.#clients.find((client) => !members.some((member) => member.client === client));
    if (free !== undefined) return free;
    const another = new Client(this.#url, this.#options);
    this.#clients.push(another);
    return another;
  }

  async #stored<T>(topic: string, seq: number): Promise<EventRecord<T> | undefined> {
    for await (const event of this.client.replay(topic, { fromSeq: seq, limit: 1 })) {
      return event as StoredEvent<T>;
    }
    return undefined;
  }
}

/** Moves a group with SEEK, or creates it at that position if it does not exist. */
export async function moveGroup(client: Client, topic: string, group: string, cursor: CursorPosition): Promise<void> {
  const { lastId, lastTs } = cursor;
  const to: Start = lastId !== undefined ? { afterId: lastId } : lastTs !== undefined ? { ts: lastTs } : "earliest";
  try {
    await client.seek(topic, group, to);
  } catch (thrown) {
    if (!(thrown instanceof PrombusError) || thrown.code !== "not_subscribed") throw thrown;
    const consumer = client.consume(topic, group, { from: to, maxInFlight: 1 });
    try {
      await consumer.join();
    } finally {
      // Events that were delivered in the meantime go back to the group, which does not count as an attempt.
      await consumer.close();
    }
  }
}
