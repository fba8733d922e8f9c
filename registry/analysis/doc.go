// Package analysis checks a mesh as a whole: references to what does not exist,
// objects that contradict one another, selectors that select nothing.
//
// Package manifest checks each object alone and decides what is kept out; nothing
// here keeps an object out. An error is what cannot work as written, a warning what
// is probably not meant. Each finding has a stable code (FL02xx, never used again
// for something else) and the position of the field that is to be changed.
//
// A new check is one file with its analyzer, one row in [analyzers] and one case
// under testdata.
//
// The commands analyze and apply call it, and the server for its status. All of it is
// a function of its arguments; there are no goroutines.
package analysis
