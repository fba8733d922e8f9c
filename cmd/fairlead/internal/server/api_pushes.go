package server

import (
	"context"
	"net/http"
	"time"
)

// Push is what became of one snapshot at the proxies that were connected when it
// came.
type Push struct {
	Generation uint64 `json:"generation"`
	// Started is when the snapshot was announced to the streams: the decision to
	// push. Done is when the last of them had answered; null until then.
	Started time.Time  `json:"started"`
	Done    *time.Time `json:"done"`
	// Changes is how many objects differ from the snapshot before.
	Changes  int `json:"changes"`
	Touched  int `json:"touched"`
	Accepted int `json:"accepted"`
	Waiting  int `json:"waiting"`
	Rejected int `json:"rejected"`
}

// pushes lists the latest snapshots, oldest first.
func (s *Server) pushes(context.Context, *http.Request, struct{}) ([]Push, error) {
	out := []Push{}
	for _, r := range s.xds.Rollouts() {
		p := Push{
			Generation: r.Generation, Started: r.Started, Changes: len(r.Changes), Touched: r.Touched,
			Accepted: r.Accepted, Waiting: r.Waiting, Rejected: len(r.Rejected) + r.RejectedMore,
		}
		if !r.Done.IsZero() {
			p.Done = &r.Done
		}
		out = append(out, p)
	}
	return out, nil
}
