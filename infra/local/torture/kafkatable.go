package torture

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"oncehouse/infra/local/engine"
	"oncehouse/infra/local/engine/chdb"
)

// kafkaTable is ClickHouse's own way: a table of the Kafka engine and a
// materialized view that moves what it reads into a table. It is one process, so
// it meets the kills of the engine, and has an engine of its own.
//
// The target is the same plain MergeTree as ours. The moments are its own:
// "after an insert" is when the part of a block stands in the table's directory,
// and its offsets are about to be committed.
//
// https://clickhouse.com/docs/engines/table-engines/integrations/kafka
type kafkaTable struct {
	*stream
	lab    *lab
	server *engine.Server
	log    *os.File
}

// member is the static member's name: what ClickHouse's configuration calls
// group_instance_id. With it a consumer that was killed is known when it comes
// back; without it a group waits for the end of its session, 60 s by default,
// after every kill.
const member = "clickhouse"

const kafkaConfig = "<clickhouse><kafka><group_instance_id>" + member + "</group_instance_id></kafka></clickhouse>\n"

// The flush interval makes blocks about as large and as frequent as our events;
// the default is 7.5 s.
const kafkaDDL = `CREATE TABLE clicks_queue
(
    event_id UUID, user_id UInt64, session String, url String, referrer Nullable(String), ts DateTime64(3, 'UTC'),
    duration_ms UInt32, price Decimal(12, 2), tags Array(LowCardinality(String)), props Map(LowCardinality(String), String)
)
ENGINE = Kafka
SETTINGS kafka_broker_list = '%s', kafka_topic_list = '%s', kafka_group_name = '%s', kafka_format = 'JSONEachRow',
    kafka_flush_interval_ms = 200, date_time_input_format = 'best_effort'`

const viewDDL = `CREATE MATERIALIZED VIEW clicks_view TO %s AS
SELECT event_id, user_id, session, url, referrer, ts, duration_ms, price, tags, props,
    _topic, toInt32(_partition) AS _partition, toInt64(_offset) AS _offset, assumeNotNull(_timestamp_ms) AS _timestamp, _key
FROM clicks_queue`

func openKafkaTable(ctx context.Context, l *lab) (Subject, error) {
	s, err := openClicks(ctx, l, KafkaTable, false)
	if err != nil {
		return nil, err
	}
	k := &kafkaTable{stream: s, lab: l}
	if err := k.start(ctx); err != nil {
		k.Stop()
		return nil, err
	}
	return k, nil
}

func (k *kafkaTable) start(ctx context.Context) error {
	library, err := chdb.Find(k.lab.Root)
	if err != nil {
		return err
	}
	dir := filepath.Join(k.lab.Dir, "clickhouse-kafka")
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the data of an earlier run: %w", err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	config := filepath.Join(dir, "kafka.xml")
	if err := os.WriteFile(config, []byte(kafkaConfig), 0o600); err != nil {
		return fmt.Errorf("write the engine's configuration: %w", err)
	}
	if k.log, err = os.Create(filepath.Join(k.lab.Dir, "log", KafkaTable+".log")); err != nil {
		return fmt.Errorf("open the engine's log: %w", err)
	}
	k.server, err = engine.Start(ctx, engine.Options{
		Binary: k.lab.Program, Args: []string{"engine"}, Library: library, Config: config,
		Data: filepath.Join(dir, "data"), Output: k.log,
	})
	if err != nil {
		return err
	}
	k.engine = k.server.URL()
	if err := k.createTable(ctx, k.lab.Root, "clicks", ""); err != nil {
		return err
	}
	for _, ddl := range []string{
		fmt.Sprintf(kafkaDDL, strings.Join(k.lab.stack.Broker.Addrs(), ","), k.topic, k.group),
		fmt.Sprintf(viewDDL, k.table),
	} {
		if _, err := k.query(ctx, ddl); err != nil {
			return err
		}
	}
	return nil
}

// Spares everything but the engine.
func (k *kafkaTable) Spares(m Moment) bool { return m.Victim() != Engine }

// Strike kills the engine and starts it again on its data.
func (k *kafkaTable) Strike(ctx context.Context, step Step) (int, error) {
	t := newTrap(func(*http.Request) int {
		k.server.Kill()
		return 1
	})
	switch step.Moment {
	case EngineAfterInsert:
		if err := k.atPart(ctx, t); err != nil {
			return 0, err
		}
	case EngineDuringInsert: // when within a flush is left to chance
		wait(ctx, time.Duration(step.Dice%200)*time.Millisecond)
		t.spring()
	default:
		t.spring()
	}
	killed := t.await(ctx)
	if err := k.expel(ctx, member, 0, 0); err != nil {
		return killed, err
	}
	if err := k.server.Restart(ctx); err != nil {
		return killed, fmt.Errorf("start the killed engine again: %w", err)
	}
	return killed, nil
}

// atPart has the trap spring as soon as a block stands in the table: its part
// is renamed into place, and its offsets are not committed yet. Whether the kill
// wins that race is left to the machine.
func (k *kafkaTable) atPart(ctx context.Context, t *trap) error {
	dir, err := k.query(ctx, "SELECT data_paths[1] FROM system.tables WHERE database = currentDatabase() AND name = '"+k.table+"' FORMAT TSVRaw")
	if err != nil {
		return err
	}
	old, err := newestBlock(strings.TrimSpace(dir))
	if err != nil {
		return err
	}
	for end := time.Now().Add(ambush); time.Now().Before(end) && ctx.Err() == nil; {
		if n, err := newestBlock(strings.TrimSpace(dir)); err == nil && n > old {
			break
		}
	}
	t.spring()
	return nil
}

// newestBlock is the highest block number of the parts in a directory, whose
// names are partition_from_to_level.
func newestBlock(dir string) (newest int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("list the parts: %w", err)
	}
	for _, e := range entries {
		fields := strings.Split(e.Name(), "_")
		if len(fields) != 4 {
			continue // on its way, or no part
		}
		if n, err := strconv.Atoi(fields[2]); err == nil {
			newest = max(newest, n)
		}
	}
	return newest, nil
}

// Finish counts. The view and the queue go first, so that nothing moves.
func (k *kafkaTable) Finish(ctx context.Context) (Outcome, error) {
	for _, table := range []string{"clicks_view", "clicks_queue"} {
		if _, err := k.query(ctx, "DROP TABLE "+table+" SYNC"); err != nil {
			return Outcome{}, err
		}
	}
	return k.count(ctx, nil)
}

// Stop ends everything at once.
func (k *kafkaTable) Stop() {
	if k.server != nil {
		k.server.Kill()
	}
	if k.log != nil {
		_ = k.log.Close()
	}
	k.close()
}
