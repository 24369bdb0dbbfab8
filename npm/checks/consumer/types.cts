import prombus = require("prombus");

export async function use(): Promise<number | null> {
  const server: prombus.PrombusServer = await prombus.startServer({ listen: "127.0.0.1:0" });
  return (await server.stop()).code;
}
