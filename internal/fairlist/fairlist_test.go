package fairlist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func each(n int) func(string) int { return func(string) int { return n } }

func owner(x string) string { return strings.TrimRight(x, "0123456789") }

// TestNobodyTakesThePlacesOfOthers: whoever adds most loses its own.
func TestNobodyTakesThePlacesOfOthers(t *testing.T) {
	t.Parallel()
	l := New(16, each(8), owner)
	l.Add("quiet1")
	for i := range 1000 {
		l.Add(fmt.Sprint("a", i))
		l.Add(fmt.Sprint("b", i))
		l.Add(fmt.Sprint("c", i))
	}
	all, n := l.All(), map[string]int{}
	for _, x := range all {
		n[owner(x)]++
	}
	if len(all) != 16 || all[0] != "quiet1" || all[15] != "c999" || n["a"] != 5 || n["b"] != 5 || n["c"] != 5 {
		t.Errorf("%v", all)
	}
	l = New(16, each(8), owner)
	for i := range 1000 {
		l.Add(fmt.Sprint("a", i))
	}
	if all := l.All(); len(all) != 8 || all[0] != "a992" {
		t.Errorf("one owner has %v", all)
	}
}

// TestAmongEqualsTheOldestGoes: of many owners with one element each, the newest are kept.
func TestAmongEqualsTheOldestGoes(t *testing.T) {
	t.Parallel()
	l := New(4, each(8), func(x string) string { return x })
	for i := range 10 {
		l.Add(strconv.Itoa(i))
	}
	if got := l.All(); !slices.Equal(got, []string{"6", "7", "8", "9"}) {
		t.Errorf("%v", got)
	}
}

// TestWhatIsDeletedDoesNotCount: an owner whose elements were removed has its whole share again.
func TestWhatIsDeletedDoesNotCount(t *testing.T) {
	t.Parallel()
	l := New(4, each(2), owner)
	for i := range 2 {
		l.Add(fmt.Sprint("a", i))
		l.Add(fmt.Sprint("b", i))
	}
	l.DeleteFunc(func(x string) bool { return owner(x) == "a" })
	if got := l.All(); !slices.Equal(got, []string{"b0", "b1"}) || len(l.count) != 1 || l.count["b"] != 2 {
		t.Fatalf("%v, %v", got, l.count)
	}
	l.Add("a2")
	l.Add("a3")
	if got := l.All(); !slices.Equal(got, []string{"b0", "b1", "a2", "a3"}) {
		t.Errorf("%v", got)
	}
}

// TestFirstTakesTurns: of a long list, each owner has its first elements, in the order of the list.
func TestFirstTakesTurns(t *testing.T) {
	t.Parallel()
	list := []string{"a1", "a2", "a3", "a4", "b1", "c1", "c2"}
	for n, want := range map[int]string{0: "", 1: "a1", 2: "a1 b1", 3: "a1 b1 c1", 4: "a1 a2 b1 c1", 5: "a1 a2 b1 c1 c2", 6: "a1 a2 a3 b1 c1 c2", 7: "a1 a2 a3 a4 b1 c1 c2", 9: "a1 a2 a3 a4 b1 c1 c2"} {
		if got := strings.Join(First(list, n, owner), " "); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
