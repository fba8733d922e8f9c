package nearname

// Of is " (did you mean "NAME"?)" for the first of some names of which another one is a slip; or empty.
func Of[S ~string](name string, candidates []S) string {
	for _, c := range candidates {
		if Slip(name, string(c)) {
			return ` (did you mean "` + string(c) + `"?)`
		}
	}
	return ""
}

// Slip reports whether a becomes b by changing at most two characters that stand together.
func Slip(a, b string) bool {
	const most = 2
	short := min(len(a), len(b))
	if a == b || short < most+1 {
		return false
	}
	head := 0
	for head < short && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < short-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return max(len(a), len(b))-head-tail <= most
}
