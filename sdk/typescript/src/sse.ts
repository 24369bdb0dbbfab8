/** Server-Sent Events and lines, from bytes that may be cut anywhere. */

/** Splits a stream of UTF-8 into lines that end with LF, CRLF or CR. */
export class LineSplitter {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #endsWithCr = false;

  /** The lines that these bytes complete, without their ends. */
  push(bytes: Uint8Array): string[] {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    // The second half of a CRLF that was cut.
    if (this.#endsWithCr && text.startsWith("\n")) text = text.slice(1);
    this.#endsWithCr = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    lines[0] = this.#rest + (lines[0] as string);
    this.#rest = lines.pop() as string;
    return lines;
  }

  /** What follows the last line end. */
  get rest(): string {
    return this.#rest;
  }
}

export interface SseMessage {
  /** Where a client resumes that has this message. */
  readonly id: string;
  /** The type; empty for an ordinary message. */
  readonly event: string;
  /** Undefined for a block that only sets the id. */
  readonly data: string | undefined;
}

/** Parses one `text/event-stream`. A block counts when it is complete, and so does its id. */
export class SseParser {
  /** From `retry:`. */
  retryMs: number | undefined;
  readonly #lines = new LineSplitter();
  #id: string;
  #event = "";
  #data: string | undefined;
  #isEmpty = true;

  constructor(lastId = "") {
    this.#id = lastId;
  }

  push(bytes: Uint8Array): SseMessage[] {
    const messages: SseMessage[] = [];
    for (const line of this.#lines.push(bytes)) {
      if (line !== "") {
        this.#field(line);
        continue;
      }
      if (!this.#isEmpty) messages.push({ id: this.#id, event: this.#event, data: this.#data });
      this.#event = "";
      this.#data = undefined;
      this.#isEmpty = true;
    }
    return messages;
  }

  #field(line: string): void {
    const [, name, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) as unknown as [string, string, string?];
    if (name === "data") {
      this.#data = this.#data === undefined ? value : `${this.#data}\n${value}`;
      this.#isEmpty = false;
    } else if (name === "id" && !value.includes("\0")) {
      this.#id = value;
      this.#isEmpty = false;
    } else if (name === "event") {
      this.#event = value;
    } else if (name === "retry" && /^\d+$/.test(value)) {
      this.retryMs = Number(value);
    }
  }
}
