package server

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/pki/timecheck"
)

func (s *Server) clockStatus(context.Context, *http.Request, struct{}) (timecheck.Status, error) {
	return s.clock.Status(), nil
}

func (s *Server) acceptClock(ctx context.Context, _ *http.Request, _ struct{}) (timecheck.Status, error) {
	st := s.clock.Accept()
	s.cfg.Logger.InfoContext(ctx, "clock accepted by operator", "off", st.Off.String(), "hosts", st.Voters)
	return st, nil
}

// clockRemarks are what is not well with the clock, hosts by name: for admin.sock.
func (s *Server) clockRemarks() []string {
	st := s.clock.Status()
	out := st.Remarks()
	if who := st.Outvoted(); who != "" {
		out = append(out, who)
	}
	return out
}

// clockCollector has how the clock stands as metrics.
type clockCollector struct {
	status                     func() timecheck.Status
	voters, off, held, alarmed *prometheus.Desc
}

func newClockCollector(status func() timecheck.Status) *clockCollector {
	d := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("fairlead_"+name, help, nil, nil) }
	return &clockCollector{
		status:  status,
		voters:  d("clock_votes", "Connected hosts that report their clock, each address counted once."),
		off:     d("clock_offset_seconds", "Seconds by which the median of the hosts' clocks is ahead of the server's clock; absent with fewer than three votes."),
		held:    d("signing_on_hold", "1 if the server signs no certificates because the hosts' clocks differ from its own, else 0."),
		alarmed: d("clock_alarm", "1 if the server's clock may be wrong because it was set or is behind the saved time, else 0."),
	}
}

// Describe implements [prometheus.Collector].
func (c *clockCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.voters, c.off, c.held, c.alarmed} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *clockCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.status()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gauge(c.voters, float64(st.Voters))
	if st.Voters >= timecheck.MinVotes {
		gauge(c.off, st.Off.Seconds())
	}
	gauge(c.held, truth(st.Held != ""))
	gauge(c.alarmed, truth(st.Alarm != nil))
}
