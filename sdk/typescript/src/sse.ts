/** Parsers for Server-Sent Events and for lines. Their input arrives in chunks that may end anywhere. */

/** Splits a stream of UTF-8 into lines that end with LF or CRLF. */
export class LineSplitter {
  /** The end of the input so far: a line that is not complete yet. */
  rest = "";
  readonly #decoder = new TextDecoder();

  /** Adds bytes. Returns the lines that they complete, without line ends. */
  push(bytes: Uint8Array): string[] {
    const lines = this.#decoder.decode(bytes, { stream: true }).split("\n");
    lines[0] = this.rest + (lines[0] as string);
    this.rest = lines.pop() as string;
    return lines.map((line) => line.endsWith("\r") ? line.slice(0, -1) : line);
  }
}

export interface SseMessage {
  /** The position at which a client resumes after this message. */
  readonly id: string;
  /** The value of `event:`; empty for an ordinary message. */
  readonly event: string;
  /** The value of `data:`; undefined if the block has none, but only an id or comments. */
  readonly data: string | undefined;
}

/** Parses a `text/event-stream`. A message, with its id, is returned only when the empty line that ends its block has arrived. */
export class SseParser {
  /** The last value of `retry:`, the reconnect delay that the server asks for. */
  retryMs: number | undefined;
  readonly #lines = new LineSplitter();
  #id: string;
  #event = "";
  #data: string | undefined;

  constructor(lastId = "") {
    this.#id = lastId;
  }

  push(bytes: Uint8Array): SseMessage[] {
    const messages: SseMessage[] = [];
    for (const line of this.#lines.push(bytes)) {
      const [, name, value] = /^([^:]*):? ?(.*)/s.exec(line) as unknown as [string, string, string];
      if (line === "") {
        messages.push({ id: this.#id, event: this.#event, data: this.#data });
        this.#event = "";
        this.#data = undefined;
      } else if (name === "data") {
        this.#data = this.#data === undefined ? value : `${this.#data}\n${value}`;
      } else if (name === "id" && !value.includes("\0")) {
        this.#id = value;
      } else if (name === "event") {
        this.#event = value;
      } else if (name === "retry" && /^\d+$/.test(value)) {
        this.retryMs = Number(value);
      }
    }
    return messages;
  }
}
