/** Stores the marks of `subscribeExactlyOnce` in MongoDB. */
import type { Collection, Db } from "mongodb";
import { DEDUPE_TTL_MS, type DedupeStore } from "../exactly-once.js";
import type { Millis } from "../types.js";
import { DURABLE } from "./options.js";

interface Mark {
  _id: string;
  expireAt?: Date;
}

/**
 * Stores the marks of `subscribeExactlyOnce`, one document per mark: `_id` is `<topic>::<group>::<id>`, `expireAt` the time at which
 * the mark expires. A TTL index deletes expired marks. All times are from the database's clock, so the clocks of members need not agree.
 */
export class MongoDedupe implements DedupeStore {
  readonly #collection: Collection<Mark>;
  #index: Promise<unknown> | undefined;

  constructor(db: Db, name = "dedupe") {
    this.#collection = db.collection<Mark>(name, DURABLE);
  }

  /** Creates the TTL index. The first `mark` does this too, but ignores failures: marks work without the index. */
  async init(): Promise<void> {
    await (this.#index = this.#collection.createIndex({ expireAt: 1 }, { expireAfterSeconds: 0 }));
  }

  /** The `_id` of a mark. */
  key(topic: string, group: string, id: string): string {
    return `${topic}::${group}::${id}`;
  }

  async seen(topic: string, group: string, id: string): Promise<boolean> {
    const isLive = { $or: [{ expireAt: { $exists: false } }, { $expr: { $gt: ["$expireAt", "$$NOW"] } }] };
    const filter = { _id: this.key(topic, group, id), ...isLive };
    return (await this.#collection.findOne(filter, { projection: { _id: 1 } })) !== null;
  }

  /** Resolves when a majority of the replica set has the mark. */
  async mark(topic: string, group: string, id: string, ttlMs: Millis = DEDUPE_TTL_MS): Promise<void> {
    if (this.#index === undefined) await this.init().catch(() => {});
    const expireAt = {
      $cond: [{ $gt: ["$expireAt", "$$NOW"] }, "$expireAt", { $add: ["$$NOW", Math.round(ttlMs)] }],
    };
    await this.#collection.updateOne({ _id: this.key(topic, group, id) }, [{ $set: { expireAt } }], { upsert: true });
  }
}
