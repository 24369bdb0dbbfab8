/** Starts real MongoDB servers in temporary folders. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { MongoClient } from "mongodb";
import { fixedPort } from "./ports.js";
import { REPOSITORY } from "./workspace.js";

/** The path at which `tests/mongodb/install` installs the server. */
const BINARY = resolve(process.env["PROMBUS_TEST_MONGOD"] ?? join(REPOSITORY, "target/tools/mongod-6.0.5/mongod"));
const START_MS = 30_000;
const LOG = "mongod.log";

export interface TestMongod {
  /** For drivers, e.g. `mongodb://127.0.0.1:20123/?replicaSet=rs0`. */
  readonly url: string;
  /** Kills the server and keeps its data. */
  kill(): Promise<void>;
  /** Starts it again, at the same address. */
  start(): Promise<void>;
  /** Kills the server and deletes its data. */
  remove(): Promise<void>;
}

/** Looks for the server. `missing` explains why it cannot be started. */
export function findMongod(): { missing?: string } {
  return existsSync(BINARY) ? {} : { missing: `${BINARY} does not exist: run tests/mongodb/install, or set PROMBUS_TEST_MONGOD` };
}

/** Whether there is a server to test with. Without one, tests are skipped with a line in the output, and fail under CI. */
export function hasMongod(): boolean {
  const { missing } = findMongod();
  if (missing === undefined) return true;
  if (process.env["CI"] === "true") throw new Error(missing);
  console.error(`SKIPPED: tests of MongoDB: ${missing}`);
  return false;
}

/** Starts a server: a replica set with one member, or a standalone server, which has neither transactions nor change streams. */
export async function startMongod(kind: "replica set" | "standalone"): Promise<TestMongod> {
  const isReplicaSet = kind === "replica set";
  const folder = await mkdtemp(join(tmpdir(), "prombus-mongod-"));
  const host = `127.0.0.1:${await fixedPort()}`;
  let kill = await run(folder, host, isReplicaSet);
  let isNew = true;
  const mongod: TestMongod = {
    url: `mongodb://${host}/${isReplicaSet ? "?replicaSet=rs0" : ""}`,
    kill: () => kill(),
    async start() {
      if (!isNew) kill = await run(folder, host, isReplicaSet);
      await prepare(host, isReplicaSet, isNew);
      isNew = false;
    },
    async remove() {
      await kill();
      await rm(folder, { recursive: true, force: true });
    },
  };
  try {
    await mongod.start();
  } catch (error) {
    const lines = await readFile(join(folder, LOG), "utf8").catch(() => "");
    await mongod.remove();
    throw new Error(`mongod did not start: ${error}\n${lines.slice(-2_000)}`);
  }
  return mongod;
}

/** Returns a function that kills the process. */
async function run(folder: string, host: string, isReplicaSet: boolean): Promise<() => Promise<void>> {
  const child = spawn(BINARY, [
    "--bind_ip", "127.0.0.1", "--port", host.split(":")[1] as string, "--dbpath", folder, "--logpath", join(folder, LOG),
    "--wiredTigerCacheSizeGB", "0.25", "--setParameter", "diagnosticDataCollectionEnabled=false", "--nounixsocket",
    ...(isReplicaSet ? ["--replSet", "rs0", "--oplogSize", "128"] : []),
  ], { stdio: "ignore" });
  const kill = (): void => void child.kill("SIGKILL");
  process.once("exit", kill);
  const ended = new Promise<void>((done) => child.once("close", () => {
    process.off("exit", kill);
    done();
  }));
  return async () => {
    kill();
    await ended;
  };
}

/** Waits until the server accepts writes. */
async function prepare(host: string, isReplicaSet: boolean, isNew: boolean): Promise<void> {
  const client = new MongoClient(`mongodb://${host}/?directConnection=true`, { serverSelectionTimeoutMS: START_MS });
  try {
    const admin = client.db("admin");
    await admin.command({ ping: 1 });
    if (!isReplicaSet) return;
    if (isNew) await admin.command({ replSetInitiate: { _id: "rs0", members: [{ _id: 0, host }] } });
    const end = Date.now() + START_MS;
    while (!(await admin.command({ hello: 1 }))["isWritablePrimary"]) {
      if (Date.now() > end) throw new Error("no primary");
      await new Promise((done) => setTimeout(done, 50));
    }
  } finally {
    await client.close();
  }
}
