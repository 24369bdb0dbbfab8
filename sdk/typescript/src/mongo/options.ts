/** Read and write options that must not depend on how the caller configured its `MongoClient`. */
import type { BSONSerializeOptions, CollectionOptions } from "mongodb";

/** How documents are decoded: 64-bit integers as `Long`, so that no digit is lost; other numbers as JavaScript numbers. */
export const EXACT_LONGS = {
  promoteLongs: false, promoteValues: true, promoteBuffers: false, useBigInt64: false, bsonRegExp: true, raw: false,
} as const satisfies BSONSerializeOptions;

/** Like {@link EXACT_LONGS}, for documents whose integers fit JavaScript numbers. */
export const PLAIN_NUMBERS = { ...EXACT_LONGS, promoteLongs: true } as const satisfies BSONSerializeOptions;

/** Writes survive a failover; reads see all earlier writes. A transaction of the caller uses its own read and write concerns. */
export const DURABLE: CollectionOptions = {
  writeConcern: { w: "majority", journal: true }, readConcern: { level: "local" }, readPreference: "primary",
};

/** Reads only data that a failover cannot roll back. */
export const MAJORITY: CollectionOptions = { readConcern: { level: "majority" }, readPreference: "primary" };
