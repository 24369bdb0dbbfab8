#!/usr/bin/env node
"use strict";
require("../lib/launcher.js").launch(process.argv.slice(2));
