// Package durable writes the few small files of pki so that they survive a
// kill -9 or a power cut between any two system calls: a reader sees the old
// content or the new one, never a mixture and never an empty file.
//
// It is not a database and not a general file library: one file is one record.
// The callers are pki and those of its children that keep state. Nothing here
// starts a goroutine; calls for different paths may run at the same time, calls
// for one path must be serialized by the owner of the path.
package durable
