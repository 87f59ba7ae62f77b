package delivery

import (
	"fmt"
	"strconv"
	"strings"

	"oncehouse/shared/kafka"
)

// Lane is one partition of one topic as one pipeline reads it: all order and
// all state is per lane, and lanes share nothing.
type Lane struct {
	// Pipeline is the name of the pipeline: one topic into one table.
	Pipeline string
	// Cluster tells two Kafka clusters with the same topic name apart.
	Cluster string
	kafka.TopicPartition
}

// Key is the lane's name in the ledger: pipeline/cluster/topic/partition. No
// other lane has the same one: a pipeline's, a topic's and a partition's name
// hold no slash, and the cluster is what is left.
func (l Lane) Key() string {
	return strings.Join([]string{l.Pipeline, l.Cluster, l.Topic, strconv.FormatInt(int64(l.Partition), 10)}, "/")
}

// Guarantee is what a pipeline promises; the three are one engine with three
// orders of the same steps.
type Guarantee string

// The guarantees. AtMostOnce may lose, AtLeastOnce may double, ExactlyOnce does
// neither.
const (
	AtMostOnce  Guarantee = "at-most-once"
	AtLeastOnce Guarantee = "at-least-once"
	ExactlyOnce Guarantee = "exactly-once"
)

// Replay says how an open intent is finished: ReplayAuto lets the table decide.
type Replay string

// ReplayToken sends again under the same token, ReplayProbe looks into the
// table first; ReplayAuto takes the token where the server's token log can be
// trusted (Replicated and Shared tables, within the trust horizon).
const (
	ReplayAuto  Replay = "auto"
	ReplayToken Replay = "token"
	ReplayProbe Replay = "probe"
)

// OnRecreate says what happens when a topic was deleted and made again.
type OnRecreate string

// RecreateBlock stops the lane with OffsetRegression; RecreateNewGeneration
// announces a new generation and begins it one function time-out later.
const (
	RecreateBlock         OnRecreate = "block"
	RecreateNewGeneration OnRecreate = "new-generation"
)

// Token is the insert_deduplication_token of one attempt of one chunk. It is a
// function of what is sent and never used for another record set (I5).
func (l Lane) token(generation, first, last int64, hash Hash, attempt int) string {
	return fmt.Sprintf("oncehouse:%s:%s:%s:%d:%d:%d-%d:%s:%d",
		l.Pipeline, l.Cluster, l.Topic, l.Partition, generation, first, last, hash, attempt)
}
