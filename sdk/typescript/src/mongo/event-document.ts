/** Decodes events from documents. The payload is in `payload_json`; the field `payload` is for ad hoc queries and is not read. */
import type { Binary } from "mongodb";
import { PrombusError } from "../errors.js";
import type { Addressee, StoredEvent } from "../types.js";
import { seqOf } from "./event-keys.js";

/** A document of the collection `events`, which also contains fences and records (`readable.ts` defines them). */
export interface EventDocument {
  _id: Binary;
  id: string;
  ts: number;
  topic: string;
  commit: number;
  payload_json?: string;
  max_ts?: number;
  committed_at?: Date;
  key?: string;
  sid?: string;
  partition?: number;
  headers?: Record<string, string>;
  caused_by?: string[];
  tags?: string[];
  addressee?: Addressee;
  /** The whole event as JSON, if BSON cannot represent its headers; `payload_json` may be absent then. */
  body?: Binary;
}

/** The optional fields of an event. */
const OPTIONAL = ["key", "sid", "partition", "headers", "caused_by", "tags", "addressee"] as const;

/** Decodes an event. Throws `internal` if the document is damaged. */
export function eventOf(document: EventDocument): StoredEvent {
  const { id, ts, topic } = document;
  const seq = seqOf(document);
  let fields: Partial<StoredEvent>;
  let payload: unknown;
  try {
    ({ fields, payload } = contentOf(document));
  } catch (cause) {
    throw new PrombusError("internal", `the document of seq ${seq} in ${topic} is damaged`, { cause });
  }
  const event: StoredEvent = { id, seq, ts, topic, payload };
  for (const name of OPTIONAL) {
    if (fields[name] !== undefined) Object.assign(event, { [name]: fields[name] });
  }
  return event;
}

function contentOf({ body, payload_json: json, ...fields }: EventDocument): { fields: Partial<StoredEvent>; payload: unknown } {
  if (json !== undefined && body === undefined) return { fields, payload: JSON.parse(json) };
  const parsed = JSON.parse(new TextDecoder().decode(body?.buffer)) as StoredEvent;
  return { fields: parsed, payload: parsed.payload };
}
