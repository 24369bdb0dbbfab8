/** Reads the group cursors of a server that uses the MongoDB engine. */
import type { Collection, Db } from "mongodb";
import { PrombusError } from "../errors.js";
import type { CursorStore } from "../promethean/types.js";
import type { CursorPosition } from "../types.js";
import { MAJORITY, PLAIN_NUMBERS } from "./options.js";

interface CursorDocument {
  _id: string;
  topic: string;
  lastId: string;
  lastTs: number;
}

/**
 * Reads the collection `cursors`, which `prombus serve --store mongodb://…` writes for people and tools. The collection lags behind
 * the server by at most about a second; `client.cursor()` asks the server itself.
 *
 * A group that reads several topics has one cursor per topic. If two groups with the same name read a topic through different
 * subscriptions, their cursors share one document, which contains one of the two.
 */
export class MongoCursorStore implements CursorStore {
  readonly #collection: Collection<CursorDocument>;

  /** If the server sets `mongodb.prefix`, the collection name is that prefix followed by `cursors`. */
  constructor(db: Db, collectionName = "cursors") {
    this.#collection = db.collection<CursorDocument>(collectionName, MAJORITY);
  }

  /** The `_id` of a cursor. */
  key(topic: string, group: string): string {
    return `${topic}::${group}`;
  }

  /** Returns the cursor of a group; `null` if the group does not exist or has not settled an event yet. */
  async get(topic: string, group: string): Promise<CursorPosition | null> {
    const found = await this.#collection.findOne({ _id: this.key(topic, group) }, PLAIN_NUMBERS);
    return found && { topic: found.topic, lastId: found.lastId, lastTs: found.lastTs };
  }

  /** Always rejects: the server owns the collection. */
  async set(_topic: string, _group: string, _cursor: CursorPosition): Promise<void> {
    throw new PrombusError(
      "method_not_allowed",
      "MongoCursorStore only reads: ack events through a subscription, or move the group with client.seek()",
    );
  }
}
