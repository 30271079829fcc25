package peers;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends until told to stop, over broker restarts.
 *
 * <p>Each lane is one queue with numbers 0, 1, 2, ... in bodies "lane:number". A number is sent again until it
 * is acknowledged, so that a lane is in order, with repetitions only next to each other; with "onlyOk" what is
 * stored but not known to be safe counts as not acknowledged. With "history" every
 * try is kept until it is asked for: [text before the padding, began, ended, status or error, queue, offset in
 * it, offset message id], times in milliseconds.
 */
final class Load implements Driver.Held {
    private static final long PAUSE_AFTER_FAILURE_MILLIS = 20;
    private final List<DefaultMQProducer> producers = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();
    private final String topic;
    private final int size;
    private final long paceMillis;
    private final long[] acked;
    private final Map<String, Integer> statuses = new TreeMap<>();
    private final Map<String, Integer> errors = new TreeMap<>();
    private final boolean wantHistory;
    private final boolean onlyOk;
    private List<Object> history = new ArrayList<>();
    private boolean paused;
    private int sending;
    private volatile boolean stopped;

    private Load(JSONObject args) throws Exception {
        topic = args.getString("topic");
        size = args.getIntValue("size");
        paceMillis = args.getLongValue("paceMs");
        wantHistory = args.getBooleanValue("history");
        onlyOk = args.getBooleanValue("onlyOk");
        acked = new long[args.getIntValue("lanes")];
        int count = Math.min(acked.length, Math.max(1, args.getIntValue("producers")));
        for (int i = 0; i < count; i++) {
            DefaultMQProducer producer = new DefaultMQProducer(args.getString("group"));
            Producers.configure(producer, args);
            producer.start();
            producers.add(producer);
        }
        for (int i = 0; i < count; i++) {
            int first = i;
            Thread thread = new Thread(() -> run(producers.get(first), first), "load-" + i);
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("load.start", args -> Driver.hold("load", new Load(args)));
        ops.put("load.progress", args -> load(args).progress());
        ops.put("load.wait", args -> load(args).await(args));
        ops.put("load.pause", args -> load(args).pause(true));
        ops.put("load.resume", args -> load(args).pause(false));
        ops.put("load.history", args -> load(args).history());
        ops.put("load.stop", args -> {
            load(args).join();
            return load(args).progress();
        });
    }

    private static Load load(JSONObject args) {
        return (Load) Driver.held(args);
    }

    @Override
    public Object target() {
        return this;
    }

    @Override
    public void shutdown() throws Exception {
        join();
        producers.forEach(DefaultMQProducer::shutdown);
    }

    private void join() throws InterruptedException {
        stopped = true;
        pause(false);
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void run(DefaultMQProducer producer, int first) {
        while (!stopped) {
            for (int lane = first; lane < acked.length; lane += producers.size()) {
                if (!begin()) {
                    return;
                }
                String text = text(lane);
                long began = System.currentTimeMillis();
                long pauseMillis = paceMillis;
                try {
                    int queue = lane;
                    Message message = new Message(topic, body(text));
                    SendResult result = producer.send(
                        message, (queues, sent, arg) -> queues.get(queue % queues.size()), null);
                    note(lane, text, began, result);
                } catch (Exception error) {
                    note(text, began, error);
                    pauseMillis = PAUSE_AFTER_FAILURE_MILLIS;
                }
                pause(pauseMillis);
            }
        }
    }

    /** Waits while the load is paused; false when it was stopped. */
    private synchronized boolean begin() {
        try {
            while (paused && !stopped) {
                wait();
            }
        } catch (InterruptedException stopping) {
            return false;
        }
        if (stopped) {
            return false;
        }
        sending++;
        return true;
    }

    /** Pauses, and returns when nothing is on its way any more; or goes on. */
    private synchronized Object pause(boolean pause) throws InterruptedException {
        paused = pause;
        notifyAll();
        while (paused && sending > 0) {
            wait();
        }
        return null;
    }

    /** What was tried since this was asked for last. */
    private synchronized Object history() {
        List<Object> result = history;
        history = new ArrayList<>();
        return result;
    }

    private static void pause(long millis) {
        try {
            if (millis > 0) {
                Thread.sleep(millis);
            }
        } catch (InterruptedException stopping) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized String text(int lane) {
        return lane + ":" + acked[lane] + ":";
    }

    private byte[] body(String start) {
        byte[] text = start.getBytes(StandardCharsets.US_ASCII);
        byte[] body = Arrays.copyOf(text, Math.max(size, text.length));
        Arrays.fill(body, text.length, body.length, (byte) '.');
        return body;
    }

    private synchronized void note(int lane, String text, long began, SendResult result) {
        if (!onlyOk || result.getSendStatus() == SendStatus.SEND_OK) {
            acked[lane]++;
        }
        String status = result.getSendStatus().name();
        statuses.merge(status, 1, Integer::sum);
        tried(
            text, began, status, result.getMessageQueue().getQueueId(), result.getQueueOffset(),
            result.getOffsetMsgId());
    }

    private synchronized void note(String text, long began, Exception error) {
        Throwable cause = error.getCause() == null ? error : error.getCause();
        errors.merge(cause.getClass().getSimpleName(), 1, Integer::sum);
        tried(text, began, cause.getClass().getSimpleName(), -1, -1, "");
    }

    private void tried(String text, long began, String status, int queue, long offset, String id) {
        if (wantHistory) {
            history.add(Arrays.asList(text, began, System.currentTimeMillis(), status, queue, offset, id));
        }
        sending--;
        notifyAll();
    }

    /** Waits for so many more acknowledgements than there are now. */
    private synchronized Object await(JSONObject args) throws InterruptedException {
        long wanted = total() + args.getLongValue("more");
        long deadline = System.nanoTime() + args.getLongValue("timeoutMs") * 1_000_000;
        while (total() < wanted && System.nanoTime() < deadline) {
            wait(100);
        }
        return total() >= wanted;
    }

    private long total() {
        return Arrays.stream(acked).sum();
    }

    private synchronized Object progress() {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("acked", acked.clone());
        result.put("total", total());
        result.put("statuses", new TreeMap<>(statuses));
        result.put("errors", new TreeMap<>(errors));
        return result;
    }
}
