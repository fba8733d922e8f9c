// Package durable writes the few small files of pki so that they survive a
// kill -9 or a power cut between any two system calls: a reader sees the old
// bytes or the new ones, whole, never a mixture and never an empty file.
//
// It is not a database and not a general file library: one file is one record.
// The callers are pki and those of its children that keep state. Nothing here
// starts a goroutine; calls for different paths may run at the same time, calls
// for one path are put in order by whoever owns the path.
package durable
