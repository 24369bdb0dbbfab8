/** Implements the sketch's small WebSocket client. Unlike the sketch, it restores its connection after failures. */
import { Client } from "../client.js";
import { messageOf, PrombusError } from "../errors.js";
import type { Delivery, EventRecord, Millis, PublishOptions, SubscribeOptions, UUID } from "../types.js";
import { Receiver, warnOfEnd, wireOptions } from "./receiver.js";

export interface EventClientContext {
  attempt: number;
  /** How long the lease runs, counted from the delivery. */
  ack_deadline_ms: Millis;
}

/** Returning acks the event, throwing nacks it. */
export type Handler = (event: EventRecord, ctx: EventClientContext) => Promise<void> | void;

/** The answer of the server. */
export interface OkAnswer {
  op: "OK";
  id?: UUID;
  seq?: number;
  duplicate?: boolean;
  created?: boolean;
}

/**
 * The sketch's client. Calls wait for the connection and reject with an error that has the fields of an ERR frame: `code` and `msg`.
 *
 * A lease lasts `ackTimeoutMs` (30,000) unless `modAck` extends it.
 */
export class EventClient {
  readonly #client: Client;
  readonly #receivers = new Map<string, Receiver>();

  constructor(url: string, token?: string) {
    this.#client = new Client(url, token === undefined ? {} : { token });
  }

  async publish(topic: string, payload: unknown, opts?: PublishOptions): Promise<OkAnswer> {
    const result = await this.#client.publish(topic, payload, opts).catch(throwAsFrame);
    return { op: "OK", ...result };
  }

  async subscribe(topic: string, group: string, handler: Handler, opts: SubscribeOptions = {}): Promise<OkAnswer> {
    const key = `${topic}::${group}`;
    if (this.#receivers.has(key)) {
      throwAsFrame(new PrombusError("already_subscribed", `already subscribed to ${topic} as group ${group}`));
    }
    const handle = (delivery: Delivery): Promise<void> => this.#handle(receiver, delivery, handler);
    const onEnd = (error: unknown): void => {
      this.#remove(receiver);
      warnOfEnd(error);
    };
    const receiver: Receiver = new Receiver(this.#client, topic, group, wireOptions(opts, true), handle, onEnd);
    this.#receivers.set(key, receiver);
    try {
      return { op: "OK", created: await receiver.start() };
    } catch (thrown) {
      this.#remove(receiver);
      return throwAsFrame(thrown);
    }
  }

  async unsubscribe(topic: string, group: string): Promise<OkAnswer> {
    const receiver = this.#receivers.get(`${topic}::${group}`);
    if (receiver === undefined) {
      return throwAsFrame(new PrombusError("not_subscribed", `not subscribed to ${topic} as group ${group}`));
    }
    // Handlers that are still running may extend their leases until this resolves.
    await receiver.end();
    this.#remove(receiver);
    return { op: "OK" };
  }

  /**
   * Extends the lease of an event to `extend_ms` (at least 1,000) from now. Reports no result, and ignores events that are not held.
   */
  modAck(topic: string, group: string, id: UUID, extend_ms: Millis): void {
    const delivery = this.#receivers.get(`${topic}::${group}`)?.find(topic, id);
    delivery?.extend(extend_ms).catch(() => {});
  }

  /** Leaves all groups and closes the connection. */
  async close(): Promise<void> {
    await Promise.all([...this.#receivers.values()].map((receiver) => receiver.end()));
    this.#receivers.clear();
    await this.#client.close();
  }

  /** Removes a receiver, unless a later subscription to the same group has replaced it. */
  #remove(receiver: Receiver): void {
    const key = `${receiver.topic}::${receiver.group}`;
    if (this.#receivers.get(key) === receiver) this.#receivers.delete(key);
  }

  async #handle(receiver: Receiver, delivery: Delivery, handler: Handler): Promise<void> {
    const { event, ctx } = delivery;
    try {
      await handler(event, { attempt: ctx.attempt, ack_deadline_ms: Math.max(0, ctx.leaseUntil - Date.now()) });
      await receiver.ack(delivery);
    } catch (thrown) {
      // If the nack cannot be sent, the lease expires and the event is redelivered.
      await receiver.nack(delivery, messageOf(thrown)).catch(() => {});
    }
  }
}

/** Throws an error that also has the fields of an ERR frame, because the sketch rejects with that frame. */
function throwAsFrame(thrown: unknown): never {
  if (thrown instanceof Error) Object.assign(thrown, { op: "ERR", msg: thrown.message });
  throw thrown;
}
