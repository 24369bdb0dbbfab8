import { describe, expect, it } from "vitest";
import { LineSplitter, type SseMessage, SseParser } from "../src/sse.js";

const encoder = new TextEncoder();

function parse(pieces: Uint8Array[], lastId?: string): SseMessage[] {
  const parser = new SseParser(lastId);
  const messages = pieces.flatMap((piece) => parser.push(piece));
  // Blocks without data only set the id.
  return messages.filter(({ id, data }, index) => data !== undefined || id !== (messages[index - 1]?.id ?? ""));
}

describe("SseParser", () => {
  const lines = [
    "\ufeffretry: 250", "id: p1", ": connected", "",
    "id: 1", "data: {\"text\": \"größe 😀\"}", "",
    ": keep-alive", "",
    "event: error", "data: a", "data:b", "data", "",
    "id", "data:  two spaces", "ignored: x", "nocolon", "",
    "event: alone", "",
    "data: c", "", "",
  ];
  const expected: SseMessage[] = [
    { id: "p1", event: "", data: undefined },
    { id: "1", event: "", data: "{\"text\": \"größe 😀\"}" },
    { id: "1", event: "error", data: "a\nb\n" },
    { id: "", event: "", data: " two spaces" },
    { id: "", event: "", data: "c" },
  ];

  for (const [name, end] of [["LF", "\n"], ["CRLF", "\r\n"]] as const) {
    it(`reads lines that end with ${name}, split at every byte`, () => {
      const bytes = encoder.encode(lines.join(end));
      for (let cut = 0; cut <= bytes.length; cut += 1) {
        expect(parse([bytes.subarray(0, cut), bytes.subarray(cut)]), `cut at ${cut}`).toEqual(expected);
      }
      expect(parse(Array.from(bytes, (byte) => Uint8Array.of(byte)))).toEqual(expected);
    });
  }

  it("does not deliver an incomplete block or its id", () => {
    expect(parse([encoder.encode("id: 1\ndata: a\n\nid: 2\ndata: b\n")])).toEqual([{ id: "1", event: "", data: "a" }]);
  });

  it("keeps the id of the previous connection, and ignores an id with NUL", () => {
    expect(parse([encoder.encode("data: a\n\nid: x\0y\ndata: b\n\n")], "7").map(({ id }) => id)).toEqual(["7", "7"]);
  });

  it("accepts a retry time only if it is a number", () => {
    const parser = new SseParser();
    parser.push(encoder.encode("retry: soon\n"));
    expect(parser.retryMs).toBeUndefined();
    parser.push(encoder.encode("retry: 1500\n"));
    expect(parser.retryMs).toBe(1500);
  });
});

describe("LineSplitter", () => {
  it("collects a long line in linear time", () => {
    const splitter = new LineSplitter();
    const piece = encoder.encode("x".repeat(65_536));
    const began = performance.now();
    for (let count = 0; count < 512; count += 1) expect(splitter.push(piece)).toEqual([]);
    const [line] = splitter.push(encoder.encode("\nrest"));
    expect(line?.length).toBe(512 * 65_536);
    expect(splitter.rest).toBe("rest");
    expect(performance.now() - began).toBeLessThan(5_000);
  });
});
