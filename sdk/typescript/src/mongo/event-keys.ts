/** The `_id` of documents in `events`: topic number and seq, big-endian, so that the events of a topic are a range in seq order. */
import { Binary } from "mongodb";

/** Topic numbers of documents that are not events; `readable.ts` defines fences and records. */
export const FENCES = 0;
export const RECORDS = 1;

/** A range of seqs; empty if `lastSeq` is lower than `firstSeq`. */
export interface SeqRange {
  readonly firstSeq: number;
  readonly lastSeq: number;
}

export function eventKey(topicNo: number, seq: number): Binary {
  const bytes = new Uint8Array(12);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, topicNo);
  view.setBigUint64(4, BigInt(seq));
  return new Binary(bytes);
}

/** The seq in an `_id`. */
export function seqOf({ _id }: { _id: Binary }): number {
  const bytes = _id.buffer;
  return Number(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getBigUint64(4));
}

/** A filter for the events of a topic with these seqs. Excludes documents that contain only the id of a cleaned event. */
export function keptIn(topicNo: number, { firstSeq, lastSeq }: SeqRange): Record<string, unknown> {
  return { _id: { $gte: eventKey(topicNo, firstSeq), $lte: eventKey(topicNo, lastSeq) }, expire_at: { $exists: false } };
}
