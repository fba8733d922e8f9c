// Package loglevel sets the log levels of a process while it runs, one for each component.
//
// A component is what a logger was given as the attribute "component". Lines of loggers
// without one belong to [Default]. Nothing here is written to disk: a restart begins with the
// level of the start.
//
// It owns no goroutines. All methods may be called at the same time.
package loglevel
