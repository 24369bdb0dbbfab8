# Runs the cases of the Autobahn test suite in several processes and summarizes their results. Needs Python 2.7 with the
# suite installed; tests/autobahn/run starts it.
from __future__ import print_function

import argparse
import collections
import json
import multiprocessing
import os
import re
import shutil
import sys
import time

GROUPS = "1.* 2.* 3.* 4.* 5.* 6.* 7.* 9.* 10.* 12.* 13.*".split()

# The suite's names of results that are not failures, and their columns. Everything else is a failure: a wrong close
# code, a connection that was not closed by the close handshake, a TCP connection that the server left for the client
# to close, an extension that was not negotiated.
COLUMNS = {"OK": "passed", "NON-STRICT": "non-strict", "INFORMATIONAL": "informational"}

Result = collections.namedtuple("Result", "case behavior behavior_close why duration_ms")


def load_suite():
    """Imports the suite. Processes must not share its reactor, so only a child process may call this."""
    from autobahntestsuite import case, fuzzing
    from twisted.internet import reactor

    return case, fuzzing, reactor


def list_cases(patterns, queue):
    """Sends the ids of the cases that match one of the patterns to the queue, in the suite's order."""
    case, fuzzing, _ = load_suite()
    case_set = fuzzing.CaseSet(
        case.CaseSetname, case.CaseBasename, case.Cases, case.CaseCategories, case.CaseSubCategories
    )
    shapes = [re.compile("^%s$" % re.escape(pattern).replace("\\*", ".*")) for pattern in patterns]
    ids = [case_set.caseClasstoId(cls) for cls in case.Cases]
    queue.put([id for id in ids if any(shape.match(id) for shape in shapes)])


def run_cases(options, ids, next_index, results):
    """Runs one case after the other until none is left, and sends their results to the queue."""
    case, fuzzing, reactor = load_suite()
    for cls in case.Cases:
        group = cls.__name__[len(case.CaseBasename):].split("_")[0]
        if group in ("12", "13"):
            cls.COUNT = options.messages

    class Factory(fuzzing.FuzzingClientFactory):
        def nextCase(self):
            with next_index.get_lock():
                index = next_index.value
                next_index.value += 1
            if index >= len(ids):
                return False
            self.currentCaseId = ids[index]
            self.currentCaseIndex = self.CaseSet.CasesIndices[self.currentCaseId]
            return True

        def logCase(self, report):
            behavior, close = report["behavior"], report["behaviorClose"]
            why = [] if behavior in COLUMNS else [report["result"]]
            why += [] if close in COLUMNS else [report["resultClose"]]
            if why:
                path = os.path.join(options.reports, "%s.json" % report["id"])
                with open(path, "w") as file:
                    json.dump(report, file, indent=1, sort_keys=True, encoding="latin-1")
            results.put(Result(report["id"], behavior, close, " / ".join(why), report["duration"]))

        def createReports(self):
            pass

    # Hides the suite's own output, which is one line per case.
    sys.stdout = open(os.devnull, "w")
    factory = Factory({"servers": [{"agent": "server", "url": options.url}], "cases": ids})
    # If there is no case for this process, nothing would stop the reactor.
    if hasattr(factory, "currentCaseId"):
        reactor.run()


def column(result):
    if result.behavior_close not in COLUMNS:
        return "failed"
    return COLUMNS.get(result.behavior, "failed")


def collect(options, ids, jobs):
    """Runs cases in this number of processes. Returns their results in the same order."""
    next_index = multiprocessing.Value("i", 0)
    queue = multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=run_cases, args=(options, ids, next_index, queue))
        for _ in range(jobs)
    ]
    for worker in workers:
        worker.daemon = True
        worker.start()
    results = {}
    deadline = time.time() + options.timeout
    while any(worker.is_alive() for worker in workers) or not queue.empty():
        if time.time() > deadline:
            print("timed out after %d s" % options.timeout)
            break
        try:
            result = queue.get(timeout=0.2)
        except multiprocessing.queues.Empty:
            continue
        results[result.case] = result
        if options.verbose:
            print("%-8s %s / %s, %d ms" % (result[:3] + (result.duration_ms,)))
    for worker in workers:
        if worker.is_alive():
            worker.terminate()
    missing = Result("", "MISSING", "MISSING", "the case did not run, or did not end", 0)
    return [results.get(id, missing._replace(case=id)) for id in ids]


def print_figures(results, elapsed):
    columns = ["passed", "non-strict", "informational", "failed"]
    groups = collections.OrderedDict()
    for result in results:
        groups.setdefault(result.case.split(".")[0], collections.Counter())[column(result)] += 1
    line = "%-6s" + " %14s" * len(columns)
    print(line % tuple(["group"] + columns))
    for group, counts in groups.items():
        print(line % tuple([group] + [counts[name] for name in columns]))
    totals = sum(groups.values(), collections.Counter())
    print(line % tuple(["all"] + [totals[name] for name in columns]))
    print("autobahn: %d passed, %d failed in %d s" % (len(results) - totals["failed"], totals["failed"], elapsed))


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/autobahn/run")
    parser.add_argument("url", help="an endpoint that echoes messages, e.g. ws://127.0.0.1:9001/")
    parser.add_argument("--cases", nargs="+", default=GROUPS, metavar="PATTERN",
                        help="e.g. '6.*' 7.1.1 (default: all of groups 1 to 7, 9, 10, 12 and 13)")
    parser.add_argument("--messages", type=int, default=50,
                        help="per case of groups 12 and 13 (default: %(default)s; the suite's own number is 1000)")
    parser.add_argument("--jobs", type=int, default=4, help="processes (default: %(default)s)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for all cases (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="a non-strict result is a failure")
    parser.add_argument("--verbose", action="store_true", help="prints a line per case")
    parser.add_argument("--reports", required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse_arguments()
    started = time.time()
    if options.strict:
        del COLUMNS["NON-STRICT"]
    shutil.rmtree(options.reports, ignore_errors=True)
    os.makedirs(options.reports)

    queue = multiprocessing.Queue()
    lister = multiprocessing.Process(target=list_cases, args=(options.cases, queue))
    lister.start()
    ids = queue.get(timeout=60)
    lister.join()
    if not ids:
        print("no case matches %s" % " ".join(options.cases), file=sys.stderr)
        return 2

    results = collect(options, ids, options.jobs)
    # The suite allows a server 1 s to answer a close frame, which can be too short while other tests use the CPUs. Cases that
    # failed run again, one at a time: a fault of the server shows again.
    again = [result for result in results if column(result) == "failed"]
    for result in again:
        print("runs again: %s: %s / %s: %s" % result[:4])
    if again:
        repeated = {result.case: result for result in collect(options, [it.case for it in again], 1)}
        results = [repeated.get(result.case, result) for result in results]
    failures = [result for result in results if column(result) == "failed"]
    for result in failures:
        print("FAILED %s: %s / %s: %s" % result[:4])
    if failures:
        print("reports: %s" % options.reports)
    print_figures(results, time.time() - started)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
