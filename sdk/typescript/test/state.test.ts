import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { connect } from "../src/client.js";
import { Http } from "../src/http.js";
import { type StateChange, StateView } from "../src/state.js";
import { collect, countedSignal, fakeServer, httpOf, publishRecords, timers, until } from "./support/history.js";
import { startServer, type TestServer } from "./support/server.js";

let server: TestServer;
let http: Http;
beforeAll(async () => {
  server = await startServer();
  ({ http } = httpOf(server.http));
});
afterAll(() => server.remove());

const put = (topic: string, ...records: [key: string, payload: unknown][]): Promise<string[]> =>
  publishRecords(server.http, topic, records.map(([key, payload]) => ({ key, payload })));
const contents = (view: StateView): Record<string, unknown> =>
  Object.fromEntries([...view.entries()].map(([key, { payload }]) => [key, payload]));
const told = ({ key, event, previous }: StateChange): unknown[] => [key, event?.payload, previous?.payload];

describe("StateView", () => {
  it("loads the newest event of each key and follows the topic", async () => {
    await put("basic", ["a", 1], ["b", 1], ["c/ d", 1], ["a", 2], ["b", null]);
    const view = await StateView.load<number>(http, "basic");
    expect(contents(view)).toEqual({ "a": 2, "c/ d": 1 });
    expect([view.size, view.has("a"), view.has("b"), view.get("a")?.seq, view.position?.seq]).toEqual([2, true, false, 4, 5]);
    const changes = view[Symbol.asyncIterator]();
    await put("basic", ["a", 3], ["new", 1], ["c/ d", null], ["unknown", null]);
    await publishRecords(server.http, "basic", [{ payload: "no key" }]);
    expect((await collect({ [Symbol.asyncIterator]: () => changes }, 3)).map(told)).toEqual([
      ["a", 3, 2], ["new", 1, undefined], ["c/ d", undefined, 1],
    ]);
    await until(() => view.position?.seq === 10);
    expect([...view.keys()]).toEqual(["a", "new"]);
    expect([...view.values()].map(({ payload }) => payload)).toEqual([3, 1]);
    view.close();
    await view.closed;
    expect([view.error, contents(view)]).toEqual([undefined, { a: 3, new: 1 }]);
  });

  it("is not changed by events for one group", async () => {
    const bus = connect(server.ws);
    await bus.subscribe("addressed", "readers", () => {});
    const addressee = { subscription: "addressed", group: "readers" };
    await put("addressed", ["a", 1], ["b", 1]);
    const view = await StateView.load<number>(http, "addressed");
    const changes = view[Symbol.asyncIterator]();
    await bus.publish("addressed", 0, { key: "a", addressee });
    await bus.publish("addressed", null, { key: "b", addressee });
    await bus.publish("addressed", 0, { key: "c", addressee });
    await put("addressed", ["a", 2]);
    await until(() => view.position?.seq === 6);
    expect(contents(view)).toEqual({ a: 2, b: 1 });
    expect((await collect({ [Symbol.asyncIterator]: () => changes }, 1)).map(told)).toEqual([["a", 2, 1]]);
    expect((await collect(bus.replay("addressed"))).map((event) => event.addressee?.group)).toEqual([
      undefined, undefined, "readers", "readers", "readers", undefined,
    ]);
    const unknown = bus.publish("addressed", 0, { addressee: { subscription: "addressed", group: "nobody" } });
    await expect(unknown).rejects.toMatchObject({ code: "not_found" });
    view.close();
    await bus.close();
  });

  it("works with a topic that does not exist yet", async () => {
    const view = await StateView.load(http, "from.nothing");
    expect([view.size, view.position]).toEqual([0, undefined]);
    const changes = collect(view, 1);
    await put("from.nothing", ["a", 1]);
    expect((await changes).map(told)).toEqual([["a", 1, undefined]]);
    view.close();
  });

  it("has no gap while 2,000 publishes run, over many pages", async () => {
    const expected = new Map<string, number>();
    const keys = 2_500;
    const records = Array.from({ length: keys }, (_, n) => ({ key: `k${n}`, payload: 0 }));
    await publishRecords(server.http, "busy", records);
    for (const { key } of records) expected.set(key, 0);
    const publishing = (async () => {
      for (let n = 1; n <= 2_000; n += 4) {
        const batch = [n, n + 1, n + 2, n + 3].map((payload) => {
          const key = `k${(payload * 7919) % keys}`;
          const isDelete = payload % 5 === 0;
          if (isDelete) expected.delete(key);
          else expected.set(key, payload);
          return { key, payload: isDelete ? null : payload };
        });
        await publishRecords(server.http, "busy", batch);
      }
    })();
    const views: StateView<number>[] = [];
    for (let count = 0; count < 5; count += 1) {
      views.push(await StateView.load<number>(http, "busy"));
      await new Promise((done) => setTimeout(done, 30));
    }
    await publishing;
    for (const view of views) {
      await until(() => view.position?.seq === keys + 2_000, "the view is current");
      expect(contents(view)).toEqual(Object.fromEntries(expected));
      const seqs = [...view.values()].map(({ seq }) => seq);
      expect(seqs).toEqual([...seqs].sort((a, b) => a - b));
      view.close();
    }
  });

  it("merges the changes of one key for a slow reader", async () => {
    await put("merge", ["a", 0], ["gone", 0]);
    const view = await StateView.load<number>(http, "merge");
    const changes = view[Symbol.asyncIterator]();
    for (let n = 1; n <= 50; n += 1) await put("merge", ["a", n], [`b${n % 3}`, n]);
    await put("merge", ["short", 1], ["short", null], ["gone", 1], ["gone", null], ["end", 1]);
    await until(() => view.has("end"));
    const seen = (await collect({ [Symbol.asyncIterator]: () => changes }, 6)).map(told);
    expect(seen).toEqual([
      ["a", 50, 0], ["b1", 49, undefined], ["b2", 50, undefined], ["b0", 48, undefined], ["gone", undefined, 0],
      ["end", 1, undefined],
    ]);
    view.close();
  });

  it("continues after SIGKILL and SIGTERM", async () => {
    const own = await startServer();
    try {
      const view = await StateView.load<number>(httpOf(own.http).http, "restart");
      const seen: unknown[] = [];
      const reading = (async () => {
        for await (const change of view) seen.push(change.event?.payload);
      })();
      const records = (n: number): object[] => [{ key: "k", payload: n }, { key: `k${n}`, payload: n }];
      await publishRecords(own.http, "restart", records(1));
      await until(() => view.position?.seq === 2);
      await own.restart("SIGKILL");
      await publishRecords(own.http, "restart", records(2));
      await until(() => view.position?.seq === 4);
      await own.restart("SIGTERM");
      await publishRecords(own.http, "restart", records(3));
      await until(() => view.position?.seq === 6);
      expect(contents(view)).toEqual({ k: 3, k1: 1, k2: 2, k3: 3 });
      view.close();
      await reading;
      expect(seen).toEqual([1, 1, 2, 2, 3, 3]);
    } finally {
      await own.remove();
    }
  });

  it("loads again and reports the differences after the server was restored to an older state", async () => {
    const backup = await mkdtemp(join(tmpdir(), "prombus-sdk-backup-"));
    const own = await startServer();
    try {
      await publishRecords(own.http, "old", [{ key: "a", payload: 1 }, { key: "b", payload: 1 }, { key: "c", payload: 1 }]);
      await own.stop();
      await cp(own.data, backup, { recursive: true });
      await own.start();
      await publishRecords(own.http, "old", [{ key: "a", payload: 2 }, { key: "b", payload: null }, { key: "d", payload: 2 }]);
      const view = await StateView.load<number>(httpOf(own.http).http, "old");
      expect(contents(view)).toEqual({ a: 2, c: 1, d: 2 });
      const changes = collect(view, 4);
      await own.stop();
      await rm(own.data, { recursive: true });
      await cp(backup, own.data, { recursive: true });
      await own.start();
      await publishRecords(own.http, "old", [{ key: "e", payload: 3 }]);
      const seen = (await changes).map(told).sort();
      expect(seen).toEqual([["a", 1, 2], ["b", 1, undefined], ["d", undefined, 2], ["e", 3, undefined]]);
      expect(contents(view)).toEqual({ a: 1, b: 1, c: 1, e: 3 });
      view.close();
    } finally {
      await own.remove();
      await rm(backup, { recursive: true, force: true });
    }
  });

  it("waits for a server that is not there yet", async () => {
    const own = await startServer();
    try {
      await publishRecords(own.http, "later", [{ key: "a", payload: 1 }]);
      await own.stop();
      const loading = StateView.load(httpOf(own.http).http, "later");
      await new Promise((done) => setTimeout(done, 300));
      await own.start();
      const view = await loading;
      expect(contents(view)).toEqual({ a: 1 });
      view.close();
    } finally {
      await own.remove();
    }
  });

  it("rejects if the server refuses the load, or the signal aborts it", async () => {
    const caller = countedSignal();
    const locked = await startServer({ token: "t" });
    try {
      await expect(StateView.load(httpOf(locked.http).http, "a")).rejects.toMatchObject({ code: "unauthorized", status: 401 });
      await locked.stop();
      const { signal } = caller.controller;
      const loading = StateView.load(httpOf(locked.http, "t").http, "a", { signal });
      setTimeout(() => caller.controller.abort(), 50);
      await expect(loading).rejects.toMatchObject({ code: "aborted" });
      await expect(StateView.load(http, "a", { signal })).rejects.toMatchObject({ code: "aborted" });
      expect(caller.listeners()).toBe(0);
    } finally {
      await locked.remove();
    }
  });

  it("throws from its iterators when following is refused, and keeps its events", async () => {
    const event = { id: "i", seq: 1, ts: 1, topic: "t", key: "a", payload: 1 };
    const fake = await fakeServer((request, response) => {
      if (request.url?.startsWith("/state/")) {
        response.end(JSON.stringify({ position: { id: "i", seq: 1 }, events: [event], next: null }));
      } else {
        setTimeout(() => response.writeHead(403).end('{"error":"no","code":"forbidden"}'), 30);
      }
    });
    try {
      const view = await StateView.load(httpOf(fake.url).http, "t");
      await expect(collect(view)).rejects.toMatchObject({ code: "forbidden" });
      await view.closed;
      expect(view.error).toMatchObject({ code: "forbidden", status: 403 });
      await expect(collect(view)).rejects.toMatchObject({ code: "forbidden" });
      expect(contents(view)).toEqual({ a: 1 });
    } finally {
      await fake.close();
    }
  });

  it("ends iterators and leaves no timer or listener after close()", async () => {
    const before = timers();
    const closed = new AbortController();
    const caller = countedSignal();
    const own = new Http(server.http, async () => undefined, closed.signal);
    const view = await StateView.load(own, "quiet", { signal: caller.controller.signal });
    await put("quiet", ["a", 1]);
    await until(() => view.has("a"));
    const waiting = collect(view);
    let putting: Promise<unknown> | undefined;
    for await (const _ of (setTimeout(() => { putting = put("quiet", ["a", 2]); }, 20), view)) break;
    // The change can arrive before the response. Without this, the server may be stopped before it responds.
    await putting;
    view.close();
    view.close();
    expect(await waiting).toHaveLength(1);
    expect(await collect(view)).toEqual([]);
    await view.closed;
    await until(() => own.stops.size + caller.listeners() === 0 && timers() <= before, "nothing is left");

    const second = await StateView.load(own, "quiet");
    const third = await StateView.load(own, "quiet", { signal: caller.controller.signal });
    const ends = [collect(second), collect(third)];
    caller.controller.abort();
    expect(await ends[1]).toEqual([]);
    closed.abort();
    expect(await ends[0]).toEqual([]);
    await Promise.all([second.closed, third.closed]);
    expect([second.error, third.error]).toEqual([undefined, undefined]);
    await until(() => own.stops.size + caller.listeners() === 0 && timers() <= before, "nothing is left");
  });

  it("ends a waiting next() on return()", async () => {
    const view = await StateView.load(http, "quiet.too");
    const changes = view[Symbol.asyncIterator]();
    const waiting = [changes.next(), changes.next()];
    await changes.return?.();
    expect(await Promise.all(waiting)).toEqual([{ done: true, value: undefined }, { done: true, value: undefined }]);
    view.close();
  });
});
