// The client as the pages of these tests get it: a global, so that functions given to `page.evaluate` find it.
import * as prombus from "@prombus/client";

globalThis.prombus = prombus;
