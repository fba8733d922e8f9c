package consul

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/consul/client"
)

func TestReadListing(t *testing.T) {
	t.Parallel()
	read := func(s string) listing {
		t.Helper()
		l, err := readListing(strings.NewReader(s))
		if err != nil {
			t.Fatalf("reading %q: %v", s, err)
		}
		return l
	}
	if l := read(" { } "); l == nil || len(l) != 0 {
		t.Errorf("an empty list is %v", l)
	}
	a := read(`{"web": ["x", "y\""], "q\"\u00e4\\": [], "none": null, "w3": ["y\"", "x"], "w4": ["x"]}`)
	if a["web"] != a["w3"] || a["web"] == a["w4"] || a["w4"] == a["none"] {
		t.Errorf("hashes are %v", a)
	}
	if _, ok := a["q\"ä\\"]; !ok || len(a) != 5 {
		t.Errorf("names are %v", a)
	}
	if b := read(`{"w4":["x"],"web":["y\"","x"]}`); b["web"] != a["web"] || b["w4"] != a["w4"] {
		t.Errorf("the order of tags counts: %v, %v", a, b)
	}
	for _, s := range []string{"", "{", `{"a"`, `{"a":`, `{"a": [`, `{"a": ["b`, `{"a": ["b\`, `{"a": ["b"`, `{"a": []`, `[]`, `{"a": {}}`, `{"a": [1]}`, `{"a": [],}`, `{"a": [] "b": []}`, `{1: []}`} {
		if l, err := readListing(strings.NewReader(s)); err == nil {
			t.Errorf("%q is read as %v", s, l)
		}
	}
}

// endless is one string of a list of services that does not end.
type endless struct{ begun bool }

func (e *endless) Read(p []byte) (int, error) {
	if !e.begun {
		e.begun = true
		return copy(p, `{"web": ["a"], "big": ["`), nil
	}
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// A tag is as long as whoever registers a service makes it: not all of memory is
// given to one.
func TestEndlessTagIsRefused(t *testing.T) {
	t.Parallel()
	_, err := readListing(&endless{})
	if _, ok := errors.AsType[client.Unusable](err); !ok {
		t.Errorf("it ends with %v", err)
	}
}
