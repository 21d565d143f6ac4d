// Package paper writes the whole report of a machine: it runs the scenarios of perf one after the other, each in a process of
// its own, keeps what each gave as JSON in the report's folder, and writes Markdown and plots from all that is there.
//
// A part can be made again alone, so that on a shared machine each can wait for a quiet time. Beside every part stands how much
// of the machine others used meanwhile.
package paper
