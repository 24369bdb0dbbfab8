/** Wakes an idle drainer when rows may be due. Uses a change stream on the outbox, if the server supports change streams. */
import type { ChangeStream, Collection, Db, Document, Timestamp } from "mongodb";
import { Backoff } from "../backoff.js";
import { messageOf, PrombusError } from "../errors.js";
import type { Millis } from "../types.js";
import { MAJORITY } from "./options.js";
import type { OutboxRow } from "./row.js";

/** Matches rows that become due: new rows, and rows that are pending again. Projects to the fields that the stream needs. */
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
/** A stream that was open this long counts as working, which resets the backoff. */
const WORKING_MS = 10_000;

interface Hello {
  setName?: string;
  msg?: string;
  operationTime?: Timestamp;
}

/**
 * Waits for changes of the outbox. The change stream is opened before the first wait and stays open between waits, so a change between
 * a claim and the next wait is not missed. If the stream fails, it is opened again after a backoff; the drainer polls in the meantime.
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
  /** Why the stream failed, if that was not reported yet. */
  #failure: PrombusError | undefined;
  /** Whether a change arrived after `open` and before `wait`. */
  #isChanged = false;
  readonly #waiting = new Set<() => void>();

  constructor(db: Db, collection: Collection<OutboxRow>) {
    this.#db = db;
    this.#collection = collection;
  }

  /**
   * Opens the stream if it is not open. Returns false if there is no stream, at least for now. A change after this call ends the next
   * wait. The first call after a failure of the stream rejects, so that the drainer reports the failure.
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
    // `close` or another `open` may have run in the meantime.
    if (this.#isClosed) return false;
    if (this.#stream === undefined) this.#start(operationTime);
    return true;
  }

  /** Opens the stream. It reports all changes since `startAtOperationTime`, although it is opened a moment later. */
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

  /**
   * Forgets a stream that has ended. The driver resumes streams by itself after a failover, so errors that arrive here are final, e.g.
   * the collection was dropped.
   */
  #broke(stream: ChangeStream<OutboxRow>, error?: unknown): void {
    if (this.#stream !== stream) return;
    this.#stream = undefined;
    if (error !== undefined) {
      const message = `the outbox change stream failed; the drainer polls until it is open again: ${messageOf(error)}`;
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
