/** Events as documents. `payload_json` is the payload; `payload` is for queries of people and is not read. */
import type { Binary } from "mongodb";
import type { StoredEvent } from "../types.js";
import { seqOf } from "./event-keys.js";

/** A document of `events`. Fences and records are in the same collection. */
export interface EventDocument {
  _id: Binary;
  id: string;
  ts: number;
  topic: string;
  commit: number;
  payload_json: string;
  max_ts?: number;
  committed_at?: Date;
  key?: string;
  sid?: string;
  partition?: number;
  headers?: Record<string, string>;
  caused_by?: string[];
  tags?: string[];
  /** The whole event as JSON, where its headers do not fit BSON. */
  body?: Binary;
}

/** Fields of an event that it may not have. */
const OPTIONAL = ["key", "sid", "partition", "headers", "caused_by", "tags"] as const;

export function eventOf(document: EventDocument): StoredEvent {
  const { id, ts, topic, payload_json, body } = document;
  const event: StoredEvent = { id, seq: seqOf(document), ts, topic, payload: JSON.parse(payload_json) };
  const fields = body === undefined ? document : (JSON.parse(new TextDecoder().decode(body.buffer)) as EventDocument);
  for (const name of OPTIONAL) {
    if (fields[name] !== undefined) Object.assign(event, { [name]: fields[name] });
  }
  return event;
}
