// Package codes is the register of all codes of faults and findings, as people read
// them in logs, reports and status: FL0101 and so on. A code is never given a second
// meaning, and one that is not reported any more is never given again.
//
// Each code belongs to one package, which gives it a name and a type of its own and
// says what it means; docs/troubleshooting.md says what to do. The tests of this
// package hold the register against the sources: a code that is written anywhere
// else, that two packages have, or that nobody reports is a failure.
package codes
