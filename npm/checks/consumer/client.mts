import * as client from "@prombus/client";

export const names: string[] = Object.keys(client);
