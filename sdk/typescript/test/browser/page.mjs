// Makes the client a global of the test pages, so that functions passed to `page.evaluate` find it.
import * as prombus from "@prombus/client";

globalThis.prombus = prombus;
