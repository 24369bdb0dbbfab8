/** Converts payloads to BSON and back. Events contain JSON, so both directions use JSON's data model. */
import { Long } from "mongodb";
import { PrombusError } from "../errors.js";

/** Payloads with more levels are stored as text: MongoDB limits the nesting of documents. */
const DEPTH_MAX = 90;
const INT32_LIMIT = 2 ** 31;
/** Field names that the driver interprets as its own types. */
const RESERVED_NAMES: ReadonlySet<string> = new Set(["_bsontype", "$ref"]);

/** How a payload is stored: as BSON, or as JSON text if BSON would change it. */
export type StoredPayload = { payload: unknown } | { payload_json: string };

/** Converts a payload to its stored form. Throws `invalid_payload` if the payload cannot be written as JSON. */
export function storedPayload(topic: string, payload: unknown): StoredPayload {
  let json: string | undefined;
  let cause: unknown;
  try {
    json = JSON.stringify(payload);
  } catch (thrown) {
    cause = thrown;
  }
  if (json === undefined) {
    throw new PrombusError("invalid_payload", `the payload for ${topic} cannot be written as JSON`, { cause });
  }
  const value: unknown = JSON.parse(json);
  return fitsBson(value, 0) ? { payload: bsonOf(value) } : { payload_json: json };
}

function fitsBson(value: unknown, depth: number): boolean {
  if (typeof value === "string") return isWellFormed(value);
  if (typeof value !== "object" || value === null) return true;
  if (depth >= DEPTH_MAX) return false;
  if (Array.isArray(value)) return value.every((item) => fitsBson(item, depth + 1));
  return Object.entries(value).every(([name, item]) => isPlainName(name) && fitsBson(item, depth + 1));
}

function isPlainName(name: string): boolean {
  return !name.includes("\0") && !RESERVED_NAMES.has(name) && isWellFormed(name);
}

/** Whether a text has no lone surrogate, which UTF-8 cannot represent. */
function isWellFormed(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}

/** Converts a JSON value to BSON. Whole numbers become integers, so that readers in other languages do not see `1700000000000.0`. */
function bsonOf(value: unknown): unknown {
  if (typeof value === "number") return integerOf(value);
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(bsonOf);
  return mapValues(value, bsonOf);
}

/** Converts a number to BSON. The driver itself writes 32-bit integers as integers and all other numbers as doubles. */
export function integerOf(value: number): number | Long {
  const isLong = Number.isSafeInteger(value) && (value >= INT32_LIMIT || value < -INT32_LIMIT);
  return isLong ? Long.fromNumber(value) : value;
}

/** BSON values that the driver decodes to its own classes. */
interface BsonValue {
  _bsontype: string;
  toString(encoding?: string): string;
  toJSON?(): unknown;
}

/**
 * Converts a BSON value to JSON's data model: a 64-bit integer to a number, or beyond 2^53 to a string of its digits; a date to ISO 8601,
 * an ObjectId to hex, a Decimal128 to its digits, binary data to base64. Other BSON types become strings.
 */
export function jsonOf(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(jsonOf);
  if (value instanceof Date) return value.toJSON();
  return "_bsontype" in value ? ofBsonType(value as BsonValue) : mapValues(value, jsonOf);
}

function ofBsonType(value: BsonValue): unknown {
  switch (value._bsontype) {
    case "Long": {
      const number = Number(value.toString());
      return Number.isSafeInteger(number) ? number : value.toString();
    }
    case "Binary":
      return value.toString("base64");
    case "ObjectId":
      return value.toString("hex");
    case "BSONRegExp": {
      const { pattern, options } = value as unknown as { pattern: string; options: string };
      return `/${pattern}/${options}`;
    }
    case "Code":
      return String((value as unknown as { code: unknown }).code);
    case "DBRef":
      return jsonOf(value.toJSON?.());
    case "MinKey":
    case "MaxKey":
      return value._bsontype;
    default:
      return value.toString();
  }
}

/** Applies `map` to the value of each field. Uses `Object.fromEntries`, because it also keeps a field named `__proto__`. */
function mapValues(object: object, map: (value: unknown) => unknown): object {
  return Object.fromEntries(Object.entries(object).map(([name, item]) => [name, map(item)]));
}
