// Package compat tests the Python programs of tools that compare Fairlead with recorded answers
// (make compat). It has no code of its own, and nothing imports it.
package compat
