/** Options of reads and writes that must not depend on how the caller set up its `MongoClient`. */
import type { BSONSerializeOptions, CollectionOptions } from "mongodb";

/** How documents are decoded: 64-bit integers as `Long`, so that no digit is lost, and other numbers as numbers. */
export const EXACT_LONGS = {
  promoteLongs: false, promoteValues: true, promoteBuffers: false, useBigInt64: false, bsonRegExp: true, raw: false,
} as const satisfies BSONSerializeOptions;

/** As {@link EXACT_LONGS}, for documents whose integers are small enough for numbers. */
export const PLAIN_NUMBERS = { ...EXACT_LONGS, promoteLongs: true } as const satisfies BSONSerializeOptions;

/** Writes survive a failover; reads see all earlier writes. A transaction of the caller has its own concerns. */
export const DURABLE: CollectionOptions = {
  writeConcern: { w: "majority", journal: true }, readConcern: { level: "local" }, readPreference: "primary",
};

/** Reads only what a failover cannot take back. */
export const MAJORITY: CollectionOptions = { readConcern: { level: "majority" }, readPreference: "primary" };
