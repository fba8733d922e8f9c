package nearname

import "testing"

func TestSlip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		list []string
		want string
	}{
		{"web.mehs", []string{"api.mesh", "web.mesh"}, ` (did you mean "web.mesh"?)`},
		{"web.mesh", []string{"web.mesh"}, ""}, // that is no slip
		{"v1", []string{"v2"}, ""},             // too short: anything would be near
		{"orders.mesh", []string{"order.mesh"}, ` (did you mean "order.mesh"?)`},
		{"orders.mesh", []string{"users.mesh"}, ""},
	} {
		if got := Of(c.name, c.list); got != c.want {
			t.Errorf("Of(%q, %q) = %q, want %q", c.name, c.list, got, c.want)
		}
	}
}
