/** Tells an idle drainer that there may be rows: a change stream on the outbox, where the server has change streams. */
import type { ChangeStream, Collection, Db, Document, Timestamp } from "mongodb";
import { Backoff } from "../backoff.js";
import { messageOf, PrombusError } from "../errors.js";
import type { Millis } from "../types.js";
import { MAJORITY } from "./options.js";
import type { OutboxRow } from "./row.js";

/** Rows that become due: new ones, and those that are pending again. Only the stream's own fields are sent. */
const BECAME_PENDING: Document[] = [
  {
    $match: {
      $or: [
        { operationType: "insert" },
        { operationType: "update", "updateDescription.updatedFields.status": "pending" },
        { operationType: "replace", "fullDocument.status": "pending" },
      ],
    },
  },
  { $project: { _id: 1, operationType: 1 } },
];
/** A stream that lives this long is taken to work. */
const WORKING_MS = 10_000;

interface Hello {
  setName?: string;
  msg?: string;
  operationTime?: Timestamp;
}

/**
 * The stream is opened by the first wait and stays open between waits, so a change that comes between a claim and the wait after it
 * is not missed. If it breaks for good it is opened again after a backoff; the drainer polls meanwhile.
 */
export class RowWatch {
  readonly #db: Db;
  readonly #collection: Collection<OutboxRow>;
  readonly #backoff = new Backoff(1_000, 60_000);
  #stream: ChangeStream<OutboxRow> | undefined;
  #openedAt = 0;
  #nextOpen = 0;
  #isClosed = false;
  /** A standalone server has no change streams. */
  #isUnsupported = false;
  /** Why the stream broke, if that was not reported yet. */
  #failure: PrombusError | undefined;
  /** A change arrived after `open` and before `wait`. */
  #isChanged = false;
  readonly #waiting = new Set<() => void>();

  constructor(db: Db, collection: Collection<OutboxRow>) {
    this.#db = db;
    this.#collection = collection;
  }

  /**
   * Opens the stream if it is not open. False: there is none, at least for now. Changes from now on end the next wait. Rejects once if
   * the stream broke, so that the drainer reports it.
   */
  async open(): Promise<boolean> {
    this.#isChanged = false;
    const failure = this.#failure;
    this.#failure = undefined;
    if (failure !== undefined) throw failure;
    if (this.#stream !== undefined) return true;
    if (this.#isClosed || this.#isUnsupported || performance.now() < this.#nextOpen) return false;
    const { setName, msg, operationTime } = (await this.#db.command({ hello: 1 })) as Hello;
    if (setName === undefined && msg !== "isdbgrid") {
      this.#isUnsupported = true;
      return false;
    }
    // `close` or another wait may have come in between.
    if (this.#isClosed) return false;
    if (this.#stream === undefined) this.#start(operationTime);
    return true;
  }

  /** From `startAtOperationTime` on nothing is missed, although the stream is opened a moment later. */
  #start(startAtOperationTime: Timestamp | undefined): void {
    const stream = this.#collection.watch<OutboxRow>(BECAME_PENDING, {
      ...MAJORITY, ...(startAtOperationTime === undefined ? {} : { startAtOperationTime }),
    });
    this.#stream = stream;
    this.#openedAt = performance.now();
    stream.on("change", () => this.#wake());
    stream.on("error", (error) => this.#broke(stream, error));
    stream.on("close", () => this.#broke(stream));
  }

  /** The driver resumes streams by itself after a failover. What arrives here is final, e.g. the collection was dropped. */
  #broke(stream: ChangeStream<OutboxRow>, error?: unknown): void {
    if (this.#stream !== stream) return;
    this.#stream = undefined;
    if (error !== undefined) {
      const message = `the change stream of the outbox broke; the drainer polls until it is open again: ${messageOf(error)}`;
      this.#failure = new PrombusError("unavailable", message, { cause: error });
    }
    if (performance.now() - this.#openedAt > WORKING_MS) this.#backoff.reset();
    this.#nextOpen = performance.now() + this.#backoff.next();
    stream.close().catch(() => {});
    this.#wake();
  }

  #wake(): void {
    if (this.#waiting.size === 0) this.#isChanged = true;
    for (const resolve of this.#waiting) resolve();
  }

  /** Resolves after `ms`, when a row may have become due, or when the signal aborts. */
  async wait(ms: Millis, signal: AbortSignal): Promise<void> {
    if (this.#isChanged || signal.aborted) {
      this.#isChanged = false;
      return;
    }
    await new Promise<void>((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        this.#waiting.delete(done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", done);
      this.#waiting.add(done);
    });
  }

  /** Ends the stream for good. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const stream = this.#stream;
    this.#stream = undefined;
    await stream?.close();
  }
}
