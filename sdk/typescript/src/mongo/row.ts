/** Converts documents of the outbox to records. Other programs write such documents too, so every field is checked. */
import type { ObjectId } from "mongodb";
import type { OutboxRecord } from "../outbox.js";
import { EXACT_LONGS } from "./options.js";
import { jsonOf } from "./payload.js";

/** The `_id` of a row: the record's id if `add` wrote the row; other programs may choose any value. */
export type RowId = string | ObjectId;

/** A document of the outbox. */
export interface OutboxRow {
  _id: RowId;
  [field: string]: unknown;
}

/** How rows are decoded for {@link recordOf}. */
export const ROW_OPTIONS = EXACT_LONGS;

/** Converts a row to a record. Throws if no event can be made from the row. */
export function recordOf<T>(row: OutboxRow): OutboxRecord<T> {
  const record: OutboxRecord<T> = {
    id: idOf(row),
    topic: textOf(row["topic"], "topic"),
    payload: payloadOf(row) as T,
    attempts: wholeNumberOf(row["attempts"]) ?? 0,
  };
  if (isPresent(row["key"])) record.key = textOf(row["key"], "key");
  if (isPresent(row["headers"])) record.headers = headersOf(row["headers"]);
  if (isPresent(row["ts"])) {
    const ts = wholeNumberOf(row["ts"]);
    if (ts === undefined) throw new Error("the ts is not a whole number");
    record.ts = ts;
  }
  return record;
}

function idOf({ id, _id }: OutboxRow): string {
  if (isPresent(id)) return textOf(id, "id");
  if (typeof _id === "string") return textOf(_id, "_id");
  if (isPresent(_id) && _id._bsontype === "ObjectId") return _id.toHexString();
  throw new Error("the row has no id, and its _id is neither a string nor an ObjectId");
}

function payloadOf(row: OutboxRow): unknown {
  const json = row["payload_json"];
  if (!isPresent(json)) {
    if (row["payload"] === undefined) throw new Error("the row has no payload");
    return jsonOf(row["payload"]);
  }
  if (typeof json !== "string") throw new Error("the payload_json is not a string");
  try {
    return JSON.parse(json);
  } catch (thrown) {
    throw new Error(`the payload_json is not JSON: ${(thrown as Error).message}`);
  }
}

function headersOf(headers: unknown): Record<string, string> {
  const isPlain = isObject(headers) && headers["_bsontype"] === undefined && !Array.isArray(headers) && !(headers instanceof Date);
  if (!isPlain || !Object.values(headers).every((value) => typeof value === "string")) {
    throw new Error("the headers are not an object of strings");
  }
  return headers as Record<string, string>;
}

function textOf(value: unknown, name: string): string {
  if (!isPresent(value)) throw new Error(`the row has no ${name}`);
  if (typeof value !== "string") throw new Error(`the ${name} is not a string`);
  if (value === "") throw new Error(`the ${name} is empty`);
  return value;
}

/** Converts a number, a `Long` or a date to a whole number. */
function wholeNumberOf(value: unknown): number | undefined {
  const json = value instanceof Date ? value.getTime() : jsonOf(value);
  return Number.isSafeInteger(json) ? (json as number) : undefined;
}

function isPresent<V>(value: V): value is NonNullable<V> {
  return value !== undefined && value !== null;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
